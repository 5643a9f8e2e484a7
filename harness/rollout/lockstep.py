"""Lockstep: all live episodes take a turn together, until every episode has ended.

Everything is done in slot order and every batch holds the same requests in every run, so that the same requests give the
same trajectories to the last bit, however threads and environments are timed. It is the baseline of the benchmark, and
the path to compare two runs with.
"""

from __future__ import annotations

from harness.rollout.book import Book
from harness.sampling.base import Sampler, SampleRequest, sample_all

__all__ = ["play_in_lockstep"]


def play_in_lockstep(book: Book, sampler: Sampler) -> None:
    """Plays every episode of the book to its end."""
    turns: dict[int, SampleRequest] = {}  # the next turn of every slot that has one
    while book.unfinished:
        for slot, reset in book.start_resets():
            _keep(turns, slot, book.reset_answered(slot, reset))
        requests = [turns[slot] for slot in sorted(turns)]
        turns.clear()
        samples = sample_all(sampler, requests)
        steps = [book.act(r.session, sample) for r, sample in zip(requests, samples, strict=True)]
        for slot, step in steps:
            _keep(turns, slot, book.step_answered(slot, step))


def _keep(turns: dict[int, SampleRequest], slot: int, turn: SampleRequest | None) -> None:
    if turn is not None:
        turns[slot] = turn
