"""The environments of a run: one to ask for tasks, and many to play in."""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym import ElasticTimeLimit, HorizonController
from eh_gym.errors import ConfigError, MissingBackendError, WorkerError
from eh_gym.horizon.controller import episode_horizon
from eh_gym.vector import ThreadVectorEnv
from envs.actors import in_actors, shared_actors
from envs.ids import task_ids_of
from envs.make import checked_environment, make_from_name
from envs.mixed import MixedEnv, mixed, spec_of
from harness.settings.environment import AGENT_ENV, GIVEN, Environment

ACTOR_SLOTS = 16  # environments in a Ray actor; each actor reserves one core


@dataclass(frozen=True)
class Environments:
    """How the vector environments of a command are made.

    Attributes:
        env_id: The id or spec for ``gym.make``, or several ids as `--env` takes them.
        args: Further arguments of ``gym.make``, such as the split.
        slots: The most environments that are played at once, >= 1.
        threads: The most threads that step them; 0 steps them in the caller's thread.
        success_threshold: The least reward of a success, where the environment gives no verdict.
    """

    env_id: str | EnvSpec
    args: Mapping[str, Any]
    slots: int
    threads: int
    success_threshold: float = 1.0

    @classmethod
    def of(cls, settings: Environment, env_id: str | EnvSpec, slots: int, split: str = "") -> "Environments":
        """Those of a command's settings; `split` is theirs by default."""
        return cls(env_id, settings.arguments(split), slots, settings.env_threads, settings.success_threshold)

    def open(self, controller: HorizonController | None, *, episodes: int | None = None) -> ThreadVectorEnv:
        """Makes the slots. The caller closes them.

        Args:
            controller: The horizon of every slot; None for no limit. The slots do not record outcomes with it: in
                training, `harness.rollout.outcomes` does.
            episodes: The number of episodes to play, and so the most slots.
        """
        slots = self.slots if episodes is None else min(self.slots, episodes)
        return ThreadVectorEnv([lambda: self.make(controller)] * slots, min(self.threads, slots))

    def make(self, controller: HorizonController | None) -> gym.Env[Any, Any]:
        env: gym.Env[Any, Any] = checked_environment(spec_of(self.env_id), self.args, self.success_threshold)
        if controller is not None:  # `Trajectory` decides what reward an episode has that K stops
            env = ElasticTimeLimit(env, controller, record=False, zero_reward_on_truncation=False)
        return env


def parts_of(env: gym.Env[Any, Any]) -> Sequence[Sequence[str]]:
    base = env.unwrapped
    return list(base.parts.values()) if isinstance(base, MixedEnv) else [tasks_of(env)]


def check_environment(env: gym.Env[Any, Any]) -> None:
    """Resets a `CheckedEnv` to the first task of each environment that it mixes, to refuse a wrong answer at once.

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
    task_ids = task_ids_of(env)
    if task_ids is None:
        raise ConfigError(
            f"{type(env.unwrapped).__name__} has no task_ids; add a sequence of the ids that "
            f"reset(options={{'task_id': …}}) takes. python -m envs check tells more"
        )
    return task_ids


@dataclass(frozen=True, kw_only=True)
class Given:
    """The objects that a program has given; None for what ``--env`` and ``--wrapper`` name."""

    env: EnvSpec | None = None
    controller: HorizonController | None = None


NOTHING = Given()


def name_of(thing: Any) -> str:
    thing = getattr(thing, "func", thing)  # of functools.partial
    return re.sub(r"\W", "", getattr(thing, "__name__", type(thing).__name__)) or "unnamed"


def spec_from(make: Callable[..., gym.Env[Any, Any]]) -> EnvSpec:
    """Returns a spec from which ``gym.make`` makes what a function returns.

    The function gets the arguments of ``gym.make``, but ``split`` only if it takes it.
    """
    if not callable(make):
        raise ConfigError(f"env must be an id or a function that returns an environment, got {make!r}")
    return EnvSpec(f"{name_of(make)}-v0", entry_point=functools.partial(make_from_name, make))


def environment_spec(settings: Environment, *, slots: int, temperature: float, hosted: bool = False) -> str | EnvSpec:
    """Returns the id or spec from which `gym.make` makes an environment, on this machine or in Ray actors."""
    if settings.env.startswith(GIVEN):
        raise ConfigError(
            f"the environments of this run came from {settings.env.removeprefix(GIVEN)}, which a Python program gave "
            "to train(env=...); give it again there: train(resume=..., env=...) or evaluate_policy(..., env=...)"
        )
    if settings.agent:
        arguments = {
            "agent": settings.agent,
            "tasks": str(settings.tasks),
            "at_k": settings.at_k,
            "timeout_s": settings.agent_timeout_s,
            "temperature": temperature,
            "upstream": settings.agent_upstream,
            "sampling": settings.sampling(hosted=hosted),
        }
        where = "harness.agents.env:AgentEnv"
        return EnvSpec(AGENT_ENV, where, order_enforce=False, disable_env_checker=True, kwargs=arguments)
    if settings.env_workers == "local":
        return spec_of(settings.env)
    actors = shared_actors(math.ceil(slots / ACTOR_SLOTS), settings.ray_address)
    there = {name: in_actors(name, actors) for name in settings.environments()}
    return mixed(there) if len(there) > 1 else next(iter(there.values()))


def task_environment(settings: Environment, env_id: str | EnvSpec) -> gym.Env[str, str]:
    """Makes an environment for tasks and demonstrations, on this machine if its backend is installed here."""
    try:
        env = checked_environment(
            env_id if settings.env_workers == "local" else spec_of(settings.env), settings.arguments()
        )
    except MissingBackendError:
        if settings.env_workers == "local":
            raise
        env = checked_environment(env_id, settings.arguments())
    check_environment(env)
    return env
