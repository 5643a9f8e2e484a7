"""How a run's environments are made: for rollouts, for tasks and demonstrations, and from objects."""

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym import HorizonController
from eh_gym.errors import ConfigError, MissingBackendError
from envs.actors import in_actors, shared_actors
from envs.making import checked_environment, made
from envs.mixed import mixed
from harness.rollout.environment import check_environment, spec_of
from harness.settings.environment import AGENT_ENV, GIVEN, Environment

ACTOR_SLOTS = 16  # environments in a Ray actor; each actor reserves one core


@dataclass(frozen=True, kw_only=True)
class Given:
    """The objects that a program has given; None for what ``--env`` and ``--wrapper`` name."""

    env: EnvSpec | None = None
    controller: HorizonController | None = None


def name_of(thing: Any) -> str:
    """Returns the name of a function or a class, or of an object's class, as letters, digits and underscores."""
    thing = getattr(thing, "func", thing)  # of functools.partial
    return re.sub(r"\W", "", getattr(thing, "__name__", type(thing).__name__)) or "unnamed"


def spec_from(make: Callable[..., gym.Env[Any, Any]]) -> EnvSpec:
    """Returns a spec from which ``gym.make`` makes what a function returns.

    Args:
        make: Returns an environment. It gets the arguments of ``gym.make``, but ``split`` only if it takes it.

    Raises:
        ConfigError: It is no function.
    """
    if not callable(make):
        raise ConfigError(f"env must be an id or a function that returns an environment, got {make!r}")
    return EnvSpec(f"{name_of(make)}-v0", entry_point=functools.partial(made, make))


def environment(settings: Environment, *, slots: int, temperature: float) -> str | EnvSpec:
    """Returns the id or spec from which `gym.make` makes an environment, on this machine or in Ray actors.

    Args:
        settings: The environment or agent, and where it runs.
        slots: The number of environments that this process plays at once.
        temperature: The temperature of the samples.

    Raises:
        ConfigError: The environment is an object of the Python program that began the run.
    """
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
            "sampling": settings.agent_sampling,
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
