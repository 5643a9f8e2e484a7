"""Lockstep rollouts: all live episodes take a turn together, until every episode has ended.

Everything is done in the order of the slots, and every batch holds the same requests in every run. So the same requests
give the same trajectories to the last bit, whatever the timing of threads and environments. Lockstep is the baseline of the
benchmark, and the mode in which two runs can be compared exactly.
"""

from __future__ import annotations

from harness.rollout.slots import Slots
from harness.types.sampler import Sampler, sample_all

__all__ = ["play_in_lockstep"]


def play_in_lockstep(slots: Slots, sampler: Sampler) -> None:
    """Plays every episode to its end."""
    while slots.unfinished:
        for slot, reset in slots.start_resets():
            slots.reset_answered(slot, reset)
        turns = slots.turns()
        requests = [turns[slot] for slot in sorted(turns)]
        samples = sample_all(sampler, requests)
        steps = [slots.act(r.session, sample) for r, sample in zip(requests, samples, strict=True)]
        for slot, answer in steps:
            slots.step_answered(slot, answer)
