"""Streaming rollouts: every slot plays its own episode, and no episode waits for another episode's environment.

The rollout is one loop. It starts episodes in free slots. It submits the next turn of every episode whose environment has
answered, if the turn fits into the sampler's cache. Then the sampler takes a step, and the finished actions go to the
environments. The loop waits for an answer only if the sampler has no request.

The callbacks of the environments' futures put the answers into a queue. Only the loop's thread uses the sampler and the slots.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from harness.rollout.slots import Slots
from harness.types.sampler import Sampler

Answers = SimpleQueue[Callable[[], None]]
"""A queue of calls, each of which records an answer. The loop makes them before its next step."""


def play_streaming(
    slots: Slots, sampler: Sampler, answers: Answers | None = None, *, goes_on: Callable[[], bool] = lambda: False
) -> None:
    """Plays every episode to its end.

    Args:
        slots: The episodes.
        sampler: Samples their turns.
        answers: The queue of the environments' answers. The caller may put calls of its own into it.
        goes_on: Whether the loop outlives the last episode and waits for calls that may add some.
    """
    queue: Answers = SimpleQueue() if answers is None else answers

    def expect(record: Callable[[int, Future[Any]], None], slot: int, answer: Future[Any]) -> None:
        # If environments are stepped in this thread, the answer is there already and is queued at once.
        answer.add_done_callback(lambda done: queue.put(functools.partial(record, slot, done)))

    while slots.unfinished or goes_on():
        for slot, reset in slots.start_resets():
            expect(slots.reset_answered, slot, reset)
        for turn in slots.turns().values():
            sampler.submit(turn)
        answered = False
        for record in _arrived(queue, wait=not sampler.pending):
            answered = True
            record()
        if answered:  # slots may be free now: the turns of new episodes should join the sampler's next batch
            continue
        for request, sample in sampler.step():
            expect(slots.step_answered, *slots.act(request.session, sample))


def _arrived(queue: Answers, *, wait: bool) -> Iterator[Callable[[], None]]:
    """The answers that have arrived, in order. With `wait`, waits for the first one."""
    if wait:
        yield queue.get()
    with contextlib.suppress(Empty):
        while True:
            yield queue.get_nowait()
