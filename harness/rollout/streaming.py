"""Streaming: every slot plays its own episode; no episode ever waits for another's environment.

One loop: start episodes in free slots, hand the next turns of what environments have answered to the sampler, and when
there is nothing more to hand over let the sampler advance and send what it finished to the environments. So at each of its
steps the sampler holds a request of every episode whose environment has answered. Only while it holds none does the loop
wait, for the next answer.

Environments tell that they are done through a queue that their futures' callbacks fill; the loop itself runs in one thread,
and it alone touches the sampler and the slots.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from harness.rollout.slots import Slots
from harness.types.sampler import Sampler, SampleRequest

__all__ = ["play_streaming"]

Answered = Callable[[int, Future[Any]], SampleRequest | None]


def play_streaming(slots: Slots, sampler: Sampler) -> None:
    """Plays every episode to its end."""
    answers: SimpleQueue[tuple[Answered, int, Future[Any]]] = SimpleQueue()

    def expect(record: Answered, slot: int, answer: Future[Any]) -> None:
        # Where environments are stepped in this thread the answer is there already, and is queued at once.
        answer.add_done_callback(lambda done: answers.put((record, slot, done)))

    while slots.unfinished:
        for slot, reset in slots.start_resets():
            expect(slots.reset_answered, slot, reset)
        answered = _taken(answers, wait=not sampler.pending)
        for record, slot, answer in answered:
            turn = record(slot, answer)
            if turn is not None:
                sampler.submit(turn)
        if answered:  # perhaps slots have become free, whose first turns should be in the sampler's next batch
            continue
        for request, sample in sampler.step():
            expect(slots.step_answered, *slots.act(request.session, sample))


def _taken(answers: SimpleQueue[tuple[Answered, int, Future[Any]]], *, wait: bool) -> list[Any]:
    """What has come in, in the order in which it came; with `wait` at least one."""
    taken = [answers.get()] if wait else []
    try:
        while True:
            taken.append(answers.get_nowait())
    except Empty:
        return taken
