"""make_vec: a ThreadVectorEnv of a registered environment, under one horizon controller if wanted.

Left out: ``gymnasium.make_vec``, which refuses wrappers together with a vector entry point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import HorizonController
from eh_gym.vector.thread import ThreadVectorEnv

__all__ = ["make_vec"]


def make_vec(
    env_id: str | EnvSpec,
    num_envs: int,
    controller: HorizonController | None = None,
    *,
    record: bool = True,
    success: str | Callable[[Any, float, bool, bool, dict[str, Any]], bool] = "success",
    budget_hint: str = "",
    max_workers: int | None = None,
    **env_kwargs: Any,
) -> ThreadVectorEnv:
    """Builds ``num_envs`` slots of one environment.

    Args:
        env_id: Any id or spec that ``gymnasium.make`` knows, of this project or not.
        num_envs: Slots, >= 1.
        controller: Puts every environment into an ElasticTimeLimit of this one controller; None leaves them unlimited.
        record: As for ElasticTimeLimit; without a controller it has no effect.
        success: As for ElasticTimeLimit; without a controller it has no effect.
        budget_hint: Puts a BudgetHint with this template around each; needs a controller. Empty for none.
        max_workers: As for ThreadVectorEnv; 0 steps in the caller's thread.
        **env_kwargs: For ``gymnasium.make``, such as ``split="test"``. gymnasium's passive checker is left out, as in
            ``gymnasium.make_vec``: it breaks the step after a first reset that raised (1.4.0).

    Raises:
        ConfigError: ``num_envs`` is below 1, or there is a hint and no controller.

    Example:
        >>> from eh_gym.horizon import FixedHorizon
        >>> envs = make_vec("EH-Cabinet-v0", 3, FixedHorizon(1), split="dev", max_workers=0)
        >>> _ = envs.reset(seed=0)
        >>> envs.step(["list()"] * 3)[3]
        array([ True,  True,  True])
        >>> envs.close()
    """
    from eh_gym.wrappers import BudgetHint, ElasticTimeLimit

    if num_envs < 1:
        raise ConfigError(f"num_envs must be >= 1, got {num_envs}")
    if budget_hint and controller is None:
        raise ConfigError("budget_hint tells the steps left of a K, and there is no controller; give one, or no hint")

    def build() -> gym.Env[Any, Any]:
        env = gym.make(env_id, disable_env_checker=True, **env_kwargs)
        if controller is None:
            return env
        limited = ElasticTimeLimit(env, controller, record=record, success=success)
        return BudgetHint(limited, budget_hint) if budget_hint else limited

    return ThreadVectorEnv([build] * num_envs, max_workers)
