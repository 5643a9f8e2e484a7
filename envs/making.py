"""Makes environments from the words of a command line. A wrong id or argument is a clear error."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym.errors import ConfigError, EHError

__all__ = ["json_object", "make_environment", "read_env_args", "registered", "takes_split"]


def registered(env_id: str) -> EnvSpec:
    """The spec of an id that ``gym.make`` takes; MODULE:ID imports the module first.

    Raises:
        ConfigError: gymnasium does not know the id, or its module can't be imported.
    """
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gym.spec(name)
    except (gym.error.Error, ImportError) as error:
        raise ConfigError(
            f"gymnasium knows no {env_id} ({error}); python -m envs list names this project's, and MODULE:ID imports the module "
            "that registers one of yours"
        ) from error


def takes_split(make: Callable[..., Any]) -> bool:
    """Whether what makes an environment has an argument ``split``; if not, training and evaluation have the same tasks."""
    taken = inspect.signature(make).parameters
    return "split" in taken or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())


def make_environment(env: str | EnvSpec, args: Mapping[str, Any]) -> gym.Env[str, str]:
    """Makes one environment.

    Args:
        env: The id or spec that ``gym.make`` takes; MODULE:ID imports the module first.
        args: Further arguments of ``gym.make``, such as the split.

    Raises:
        ConfigError: gymnasium does not know the id, its module can't be imported, or the environment takes other arguments.
    """
    try:
        # gymnasium's checker breaks at the first step after a first reset that raised.
        return gym.make(env, disable_env_checker=True, **args)
    except EHError:
        raise
    except (gym.error.Error, ImportError, TypeError) as error:
        name, given = env if isinstance(env, str) else env.id, f" with {dict(args)}" if args else ""
        raise ConfigError(f"{name} can't be made{given} ({error})") from error


def read_env_args(text: str) -> dict[str, Any]:
    """Reads the arguments of gym.make from the text of `--env-args`. Errors are those of `json_object`."""
    return json_object(text, "--env-args", '{"categories": ["base"]}')


def json_object(text: str, flag: str, example: str) -> dict[str, Any]:
    """Reads the value of a flag that takes a JSON object.

    Raises:
        ConfigError: The text is not a JSON object.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{flag} is not JSON ({error}); write {flag} '{example}'") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} must be a JSON object, got {text!r}")
    return value
