"""The environment that --env and --env-args name, and its tasks: a wrong name or argument is a sentence.

Left out: vector environments (`eh_gym.make_vec`), which are made of what has been made once here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym.errors import ConfigError, EHError

__all__ = ["make_environment", "read_env_args", "tasks_of"]


def read_env_args(text: str) -> dict[str, Any]:
    """The arguments of gym.make that `--env-args` gives.

    Raises:
        ConfigError: It is no JSON object.
    """
    try:
        args = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f'env_args is not JSON ({error}); write --env-args \'{{"split": "train"}}\'') from error
    if not isinstance(args, dict):
        raise ConfigError(f"env_args must be a JSON object, got {text!r}")
    return args


def make_environment(env_id: str | EnvSpec, env_args: dict[str, Any]) -> gym.Env[str, str]:
    """One environment, for the trainer or an evaluation.

    Raises:
        ConfigError: gymnasium does not know it, its module can't be imported, or it takes other arguments.
    """
    try:
        return gym.make(env_id, **env_args)
    except EHError:
        raise
    except (gym.error.Error, ImportError, TypeError) as error:
        name = env_id if isinstance(env_id, str) else env_id.id
        raise ConfigError(f"{name} can't be made with --env-args {json.dumps(env_args)} ({error})") from error


def tasks_of(env: gym.Env[Any, Any]) -> Sequence[str]:
    """The ids of its split's tasks.

    Raises:
        ConfigError: It has none to name.
    """
    task_ids: Sequence[str] | None = getattr(env.unwrapped, "task_ids", None)
    if task_ids is None:
        name = env.spec.id if env.spec else repr(env.unwrapped)
        raise ConfigError(
            f"{name} has no task_ids, a sequence of the ids that reset(options={{'task_id': …}}) takes; give an --env that "
            "has, such as EH-Cabinet-v0"
        )
    return task_ids
