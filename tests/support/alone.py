"""What a controller alone does with the same episodes: beside it stand the adapters to the trainers."""

from collections.abc import Iterable
from typing import Any

import gymnasium as gym

import eh_gym


def update_alone(controller: eh_gym.HorizonController, needs: Iterable[int]) -> list[eh_gym.EpisodeOutcome]:
    """One update with episodes that succeed after so many steps, if K lets them; returns their outcomes."""
    k = controller.horizon
    outcomes = [eh_gym.EpisodeOutcome(min(n, k), k, n <= k, truncated=n > k) for n in needs]
    for outcome in outcomes:
        controller.record(outcome)
    controller.update()
    return outcomes


def expert_episode(**reset: Any) -> tuple[str, list[str]]:
    """What an episode of EH-Cabinet begins with, and the actions of its expert."""
    env = gym.make("EH-Cabinet-v0")
    start, actions, ended = env.reset(**reset)[0], [], False
    while not ended:
        actions.append(env.unwrapped.expert())  # type: ignore[attr-defined]
        ended = env.step(actions[-1])[2]
    return start, actions


def cabinet_lengths(seeds: Iterable[int]) -> list[int]:
    """The number of steps that the expert takes in EH-Cabinet."""
    return [len(expert_episode(seed=seed)[1]) for seed in seeds]
