"""Streaming rollouts: every slot plays its own episode, and no episode waits for another episode's environment.

The rollout is one loop. It starts episodes in free slots. It submits the next turn of every episode whose environment has
answered. When there is nothing more to submit, it lets the sampler take a step and sends the finished actions to the
environments. So at each of its steps the sampler holds a request of every episode whose environment has answered. The loop
waits for the next answer only if the sampler holds no request.

The callbacks of the environments' futures put the answers into a queue. The loop runs in one thread, and only this thread
uses the sampler and the slots.
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
        # If environments are stepped in this thread, the answer is there already and is queued at once.
        answer.add_done_callback(lambda done: answers.put((record, slot, done)))

    while slots.unfinished:
        for slot, reset in slots.start_resets():
            expect(slots.reset_answered, slot, reset)
        answered = _taken(answers, wait=not sampler.pending)
        for record, slot, answer in answered:
            turn = record(slot, answer)
            if turn is not None:
                sampler.submit(turn)
        if answered:  # slots may have become free; the first turns there should be in the sampler's next batch
            continue
        for request, sample in sampler.step():
            slot, acted = slots.act(request.session, sample)
            if isinstance(acted, SampleRequest):
                sampler.submit(acted)
            else:
                expect(slots.step_answered, slot, acted)


def _taken(answers: SimpleQueue[tuple[Answered, int, Future[Any]]], *, wait: bool) -> list[Any]:
    """The answers that have arrived, in order of arrival; with `wait`, at least one."""
    taken = [answers.get()] if wait else []
    try:
        while True:
            taken.append(answers.get_nowait())
    except Empty:
        return taken
