"""Rollouts: many episodes at once, over the slots of a vector environment and one sampler.

There are two ways to play the same episodes. In `streaming` every slot goes on by itself: the sampler always holds the next
turn of every episode whose environment has answered. In `lockstep` all live episodes take a turn together, in the order of
the slots. What an episode is (reset, prompt, turn, step, end, retry) is written once for both, in `episode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eh_gym.vector import ThreadVectorEnv
from harness.rollout.slots import OnEnd, Slots
from harness.rollout.streaming import play_streaming
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sampler, sample_all
from harness.types.trajectory import Trajectory

if TYPE_CHECKING:  # an endpoint is played with without torch
    from harness.chat.chat import ChatFormat


def rollout(
    envs: ThreadVectorEnv,
    sampler: Sampler,
    chat: ChatFormat,
    requests: Sequence[EpisodeRequest],
    settings: Rollout,
    *,
    on_end: OnEnd = lambda _: None,
) -> list[Trajectory]:
    """Plays every request and returns the trajectories in the same order.

    Every reset and every turn draws from its own seed, so the trajectories are a function of the requests. In lockstep this holds
    to the last bit. In streaming, the sampler's batches depend on timing if threads step the environments. With some samplers
    the rounding depends on the batch: log-probabilities then differ in their last digits, and rarely another token is sampled.

    Args:
        envs: The slots. The caller decides whether each environment is wrapped in ElasticTimeLimit.
        sampler: Samples the actions.
        chat: Turns texts into ids.
        requests: The episodes. If there are more of them than slots, the rest wait for a free slot, in this order.
        settings: The settings of all episodes, including the mode.
        on_end: Called with each trajectory when it ends.
    """
    played: dict[int, Trajectory] = {}

    def keep(index: int, trajectory: Trajectory) -> None:
        played[index] = trajectory
        on_end(trajectory)

    slots = Slots(envs, sampler, chat)
    slots.add(requests, settings, keep)
    play = play_streaming if settings.rollout == "streaming" else _play_in_lockstep
    play(slots, sampler)
    return [played[index] for index in range(len(requests))]


def _play_in_lockstep(slots: Slots, sampler: Sampler) -> None:
    """Plays every episode to its end; all live episodes take a turn together.

    Everything happens in the order of the slots, and the batches are the same in every run. So the same requests give the same
    trajectories to the last bit, whatever the timing of threads and environments.
    """
    while slots.unfinished:
        for slot, reset in slots.start_resets():
            slots.reset_answered(slot, reset)
        turns = slots.turns()
        requests = [turns[slot] for slot in sorted(turns)]
        samples = sample_all(sampler, requests)
        steps = [slots.act(r.session, sample) for r, sample in zip(requests, samples, strict=True)]
        for slot, answer in steps:
            slots.step_answered(slot, answer)
