"""make_vec: a ThreadVectorEnv of a registered environment."""

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym.errors import ConfigError
from eh_gym.horizon.checks import positive_int
from eh_gym.horizon.controller import HorizonController
from eh_gym.vector.thread import ThreadVectorEnv


def make_vec(
    env_id: str | EnvSpec,
    num_envs: int,
    controller: HorizonController | None = None,
    *,
    success: str | Callable[[Any, float, bool, bool, dict[str, Any]], bool] = "success",
    update_every: int | None = None,
    record: bool = True,
    zero_reward_on_truncation: bool = True,
    max_workers: int | None = None,
    **env_kwargs: Any,
) -> ThreadVectorEnv:
    """Makes ``num_envs`` slots of one environment.

    Args:
        env_id: Any id or spec that ``gymnasium.make`` knows.
        num_envs: The number of slots, >= 1.
        controller: The controller of the ElasticTimeLimit around each environment; None for no limit.
        success: As for ElasticTimeLimit. Without a controller it has no effect, like the next three.
        update_every: Call ``controller.update()`` after this number of episodes of all slots together; None if your
            code calls it.
        record: As for ElasticTimeLimit.
        zero_reward_on_truncation: As for ElasticTimeLimit.
        max_workers: As for ThreadVectorEnv.
        **env_kwargs: For ``gymnasium.make``, such as ``split="test"``.

    Raises:
        ConfigError: ``num_envs`` is wrong, or an argument is unknown to this function and to the environment.

    Example:
        >>> from eh_gym.horizon import FixedHorizon
        >>> envs = make_vec("EH-Cabinet-v0", 3, FixedHorizon(1), split="dev", max_workers=0)
        >>> _ = envs.reset(seed=0)
        >>> envs.step(["list()"] * 3)[3]
        array([ True,  True,  True])
        >>> envs.close()
    """
    from eh_gym.wrappers import ElasticTimeLimit
    from eh_gym.wrappers.elastic_time_limit import EpisodeCount

    num_envs = positive_int("num_envs", num_envs)
    recorded = EpisodeCount()

    def build() -> gym.Env[Any, Any]:
        try:
            # gymnasium's passive checker (1.4.0) breaks the step after a first reset that raised.
            env = gym.make(env_id, disable_env_checker=True, **env_kwargs)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            names = ", ".join(list(inspect.signature(make_vec).parameters)[:-1])
            raise ConfigError(
                f"expected arguments of make_vec ({names}) or of the environment, got {', '.join(env_kwargs)} ({error})"
            ) from error
        if controller is None:
            return env
        limited = ElasticTimeLimit(
            env,
            controller,
            success=success,
            update_every=update_every,
            record=record,
            zero_reward_on_truncation=zero_reward_on_truncation,
        )
        limited.recorded = recorded
        return limited

    return ThreadVectorEnv([build] * num_envs, max_workers)
