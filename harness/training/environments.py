"""The environments of a training run: those of its rollouts, and one for tasks and demonstrations."""

from __future__ import annotations

import math

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from eh_gym.errors import ConfigError, MissingBackendError
from envs.actors import in_actors, shared_actors
from envs.making import make_environment
from envs.mixed import mixed
from harness.agents.env import agent_spec
from harness.machine.ranks import Ranks
from harness.rollout.environment import check_environment, spec_of
from harness.settings.environment import GIVEN
from harness.settings.grpo import GRPOConfig

__all__ = ["ACTOR_SLOTS", "environment", "teacher"]

ACTOR_SLOTS = 16  # the environments in one Ray actor, which reserves one core on its node


def environment(config: GRPOConfig, ranks: Ranks) -> str | EnvSpec:
    """Returns the id or spec from which `gym.make` makes an environment, on this machine or in Ray actors.

    Raises:
        ConfigError: The environment is an object of the Python program that began the run.
    """
    if config.env.startswith(GIVEN):
        raise ConfigError(
            f"the environments of this run came from {config.env.removeprefix(GIVEN)}, which a Python program gave to "
            "train(env=...); resume it there: train(resume=..., env=...)"
        )
    if config.agent:
        return agent_spec(
            config.agent,
            config.tasks,
            at_k=config.at_k,
            timeout_s=config.agent_timeout_s,
            temperature=config.temperature,
        )
    if config.env_workers == "local":
        return spec_of(config.env)
    actors = shared_actors(math.ceil(config.slots_of_rank(ranks.size) / ACTOR_SLOTS), config.ray_address)
    there = {name: in_actors(name, actors) for name in config.environments()}
    return mixed(there) if len(there) > 1 else next(iter(there.values()))


def teacher(config: GRPOConfig, env_id: str | EnvSpec) -> gym.Env[str, str]:
    """Makes an environment for tasks and demonstrations: on this machine, or for tasks alone in an actor."""
    try:
        env = make_environment(
            env_id if config.env_workers == "local" else spec_of(config.env), config.environment_args()
        )
    except MissingBackendError:
        if config.env_workers == "local":
            raise
        env = make_environment(env_id, config.environment_args())
    check_environment(env)
    return env
