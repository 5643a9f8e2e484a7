"""Plays episodes with the environment's own expert, for a tiny model's tokenizer and its warm start.

If an environment fails, its episode is played again with the same draws, so the episodes depend only on the seed.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import gymnasium as gym
import numpy as np

from eh_gym.errors import ConfigError, WorkerError

_ATTEMPTS = 5


class ExpertEnv(Protocol):
    """What an environment needs for demonstrations. `check_expert` says what is missing."""

    task_ids: Sequence[str]

    def expert(self) -> str:
        """The next action of a perfect agent."""
        ...

    def random_action(self, rng: np.random.Generator) -> str:
        """A harmless action."""
        ...


@dataclass
class Demonstration:
    """One episode. There is one observation and one info more than actions; `ended` is False if `max_steps` ended
    it.
    """

    info: dict[str, Any]
    observations: list[str]
    actions: list[str] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False


def check_expert(env: gym.Env[str, str], what: str, remedy: str) -> None:
    """Raises ConfigError unless `env` has tasks and an expert, which `what` needs; `remedy` ends the message."""
    missing = [name for name in ("task_ids", "expert", "random_action") if not hasattr(env.unwrapped, name)]
    if missing:
        raise ConfigError(
            f"{what} needs an environment with {', '.join(missing)}, which {env.unwrapped!r} lacks; {remedy}"
        )


def demonstrated_tasks(env: gym.Env[str, str]) -> Sequence[str]:
    """The ids of the tasks of demonstrations: the environment's ``demonstrated_ids``, or else its ``task_ids``."""
    base: Any = env.unwrapped
    ids: Sequence[str] = base.demonstrated_ids if hasattr(base, "demonstrated_ids") else base.task_ids
    return ids


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
        env: An `ExpertEnv`.
        task_id: The task.
        waste: The probability that a step is a random action.
        max_steps: The number of steps after which the episode is stopped.
        rng: Draws the seed of the reset and the wasted steps.
        max_optimal_steps: The most steps that the expert may need, by ``info["optimal_steps"]`` or else in this
            episode; 0 for no limit.

    Returns:
        The episode, or None if the task is too long.

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
                    f"task {task_id}: the environment failed {attempt} times, the last time with: {error}"
                ) from error
    raise AssertionError("unreachable")


def first_episodes(env: gym.Env[str, str], *, max_steps: int) -> list[list[str]]:
    """The texts of the expert in the first 8 tasks, which change with the environment's code; empty without an
    expert.
    """
    texts = []
    for task in demonstrated_tasks(env)[:8] if hasattr(env.unwrapped, "expert") else ():
        played = demonstrate(env, task, waste=0.0, max_steps=max_steps, rng=np.random.default_rng(0))
        assert played is not None, "no task is too long without a limit"
        texts.append([*played.observations, *played.actions])
    return texts


def _play(
    env: gym.Env[str, str], task_id: str, waste: float, max_steps: int, rng: np.random.Generator, max_optimal_steps: int
) -> Demonstration | None:
    base = cast(ExpertEnv, env.unwrapped)
    seed = int(copy.deepcopy(rng).integers(2**31))  # from a copy, so that the wasted steps do not depend on it
    observation, info = env.reset(seed=seed, options={"task_id": task_id})
    known = info.get("optimal_steps")
    needed = known or 0
    played = Demonstration(info, [observation])
    while len(played.actions) < max_steps and not played.ended:
        wasted = rng.random() < waste
        needed += known is None and not wasted
        if max_optimal_steps and needed > max_optimal_steps:
            return None
        action = base.random_action(rng) if wasted else base.expert()
        observation, _, terminated, truncated, info = env.step(action)
        if "environment_error" in info:
            raise WorkerError(str(info["environment_error"]))
        played.actions.append(action)
        played.infos.append(info)
        played.observations.append(observation)
        played.ended = terminated or truncated
    return played
