"""What an environment needs to have an expert, for demonstrations and baselines."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from eh_gym.errors import ConfigError


def check_expert(env: gym.Env[str, str], what: str, remedy: str) -> None:
    """Raises ConfigError unless `env` has tasks and an expert, for `what`; `remedy` ends the message."""
    missing = [name for name in ("task_ids", "expert", "random_action") if not hasattr(env.unwrapped, name)]
    if missing:
        raise ConfigError(
            f"{what} needs an environment with {', '.join(missing)}, which {type(env.unwrapped).__name__} lacks; "
            f"{remedy}"
        )


def demonstrated_tasks(env: gym.Env[str, str]) -> Sequence[str]:
    base: Any = env.unwrapped
    ids: Sequence[str] = base.demonstrated_ids if hasattr(base, "demonstrated_ids") else base.task_ids
    return ids
