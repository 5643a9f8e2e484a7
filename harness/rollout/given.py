"""Objects that a Python program gives to a run, in place of those that its settings name."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym import HorizonController
from eh_gym.errors import ConfigError
from envs.making import made

__all__ = ["Given", "name_of", "spec_from"]


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
