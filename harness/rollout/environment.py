"""The environments of a rollout: one to ask for tasks, and many to play in."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym import ElasticTimeLimit, HorizonController
from eh_gym.errors import ConfigError, WorkerError
from eh_gym.horizon.controller import episode_horizon
from eh_gym.vector import ThreadVectorEnv
from envs.ids import task_ids_of
from envs.making import checked_environment
from envs.mixed import MixedEnv, mixed, read_environments


@dataclass(frozen=True)
class Environments:
    """How the vector environments of a command are made.

    Attributes:
        env_id: The id or spec from which ``gym.make`` makes an environment, or several ids as `--env` takes them.
        args: Further arguments of ``gym.make``, such as the split.
        slots: The most environments that are played at once, >= 1.
        threads: The most threads that step them; 0 steps them in the caller's thread.
        success_threshold: The least reward of an episode that is a success, where the environment gives no verdict.
    """

    env_id: str | EnvSpec
    args: Mapping[str, Any]
    slots: int
    threads: int
    success_threshold: float = 1.0

    def open(self, controller: HorizonController | None, *, episodes: int | None = None) -> ThreadVectorEnv:
        """Makes the slots. The caller closes them.

        Args:
            controller: The horizon of every slot; None for no limit. The slots do not record outcomes with it: in
                training, `harness.rollout.outcomes` does.
            episodes: The number of episodes to play. There are never more slots than episodes.
        """
        slots = self.slots if episodes is None else min(self.slots, episodes)
        env_id = spec_of(self.env_id)

        def build() -> gym.Env[Any, Any]:
            env: gym.Env[Any, Any] = checked_environment(env_id, self.args, self.success_threshold)
            if controller is not None:  # `Trajectory` decides what reward an episode has that K stops
                env = ElasticTimeLimit(env, controller, record=False, zero_reward_on_truncation=False)
            return env

        return ThreadVectorEnv([build] * slots, min(self.threads, slots))


def spec_of(env: str | EnvSpec) -> str | EnvSpec:
    """Returns what ``gym.make`` takes for `--env`: the id, or a spec that mixes several."""
    if not isinstance(env, str):
        return env
    names = list(read_environments(env))
    return names[0] if len(names) == 1 else mixed({name: name for name in names})


def parts_of(env: gym.Env[Any, Any]) -> Sequence[Sequence[str]]:
    """Returns the task ids of each environment that `env` mixes, or of `env` alone. Raises as `tasks_of` does."""
    base = env.unwrapped
    return list(base.parts.values()) if isinstance(base, MixedEnv) else [tasks_of(env)]


def check_environment(env: gym.Env[Any, Any]) -> None:
    """Resets a `CheckedEnv` to the first task of each environment that it mixes, so that a wrong answer is refused at
    once.

    A WorkerError is ignored, because the rollout tries the reset again.
    """
    for task_id in [next(iter(task_ids)) for task_ids in parts_of(env) if len(task_ids)]:
        with suppress(WorkerError):
            env.reset(seed=0, options={"task_id": task_id})


def check_kinds(env: gym.Env[Any, Any], controller: HorizonController) -> None:
    """Raises ConfigError if a `KeyedHorizon` lacks its key in an environment's first task."""
    for task_ids in parts_of(env):
        with suppress(WorkerError):
            _, info = env.unwrapped.reset(seed=0, options={"task_id": task_ids[0]})
            episode_horizon(controller, info, 0)


def tasks_of(env: gym.Env[Any, Any]) -> Sequence[str]:
    """Returns the ids of the tasks of the environment's split.

    Raises:
        ConfigError: The environment does not name its tasks.
    """
    task_ids = task_ids_of(env)
    if task_ids is None:
        raise ConfigError(
            f"{type(env.unwrapped).__name__} has no task_ids; add a sequence of the ids that "
            f"reset(options={{'task_id': …}}) takes. python -m envs check tells more"
        )
    return task_ids
