"""Episodes of the environment's own expert, which a tiny model's tokenizer and its warm start are made of.

An environment that fails is played again, with the same draws: what is made of these episodes depends on the seed alone.
Left out: environments without an expert; who plays here has asked for ``expert()`` and ``random_action(rng)``.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from eh_gym.errors import WorkerError

__all__ = ["Demonstration", "demonstrate"]

_ATTEMPTS = 5


@dataclass
class Demonstration:
    """One episode.

    Attributes:
        info: Of the reset.
        observations: The first message, and the answer to every action.
        actions: One fewer than the observations.
        ended: Whether the environment ended it, rather than `max_steps`.
    """

    info: dict[str, Any]
    observations: list[str]
    actions: list[str] = field(default_factory=list)
    ended: bool = False


def demonstrate(
    env: gym.Env[str, str],
    task_id: str,
    *,
    waste: float,
    max_steps: int,
    rng: np.random.Generator,
    max_optimal_steps: int = 0,
) -> Demonstration | None:
    """Plays one task as an expert that wastes steps.

    Args:
        env: With ``expert()`` and ``random_action(rng)``.
        task_id: Which task.
        waste: The probability that a step is a random action.
        max_steps: Steps after which the episode is left.
        rng: Draws the wasted steps; where an attempt fails, the next one draws the same.
        max_optimal_steps: A task for which the expert takes more is not played; 0 for any.

    Returns:
        The episode, or None where the task is too long.

    Raises:
        WorkerError: The environment failed five times.
    """
    begin = copy.deepcopy(rng.bit_generator.state)
    for attempt in range(1, _ATTEMPTS + 1):
        rng.bit_generator.state = begin
        try:
            return _play(env, task_id, waste, max_steps, rng, max_optimal_steps)
        except WorkerError as error:
            if attempt == _ATTEMPTS:
                raise WorkerError(
                    f"task {task_id}: the environment failed {attempt} times, at last: {error}"
                ) from error
    raise AssertionError("unreachable")


def _play(
    env: gym.Env[str, str], task_id: str, waste: float, max_steps: int, rng: np.random.Generator, max_optimal_steps: int
) -> Demonstration | None:
    base = env.unwrapped
    observation, info = env.reset(options={"task_id": task_id})
    if max_optimal_steps and info.get("optimal_steps", 0) > max_optimal_steps:
        return None
    played = Demonstration(info, [observation])
    while len(played.actions) < max_steps and not played.ended:
        action = base.random_action(rng) if rng.random() < waste else base.expert()  # type: ignore[attr-defined]
        observation, _, terminated, truncated, info = env.step(action)
        if "environment_error" in info:
            raise WorkerError(str(info["environment_error"]))
        played.actions.append(action)
        played.observations.append(observation)
        played.ended = terminated or truncated
    return played
