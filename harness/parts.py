"""What a run is made of, from its settings: environments, the policy, its first weights, the frozen reference.

Each part comes to every rank alike. Left out: the sampler (`harness.sampling.make`) and the controller (`harness.config`).
"""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

import eh_gym
from eh_gym.errors import ConfigError, MissingBackendError
from envs.actors import in_actors, shared_actors
from envs.runtime import cache_dir
from harness.config import GRPOConfig
from harness.display import Display
from harness.environment import make_environment
from harness.head import Head
from harness.policy import Policy, load_policy, new_tiny_policy
from harness.ranks import Ranks
from harness.runtime import pick_dtype
from harness.seeding import derive_seed
from harness.warm_start import cached_warm_start

__all__ = ["clone_expert", "environment", "load", "reference_policy", "slot_count", "teacher"]


def load(config: GRPOConfig, env: gym.Env[str, str], device: str, ranks: Ranks) -> Policy:
    """The policy on `device`; under torchrun rank 0 has it in its host's memory, and the others without weights."""
    policy = None
    if ranks.first:
        home = "cpu" if ranks.sharded else device
        limit, dtype = config.max_observation_tokens or None, pick_dtype(config.dtype)
        if config.model == "tiny":
            seed = derive_seed(config.seed, "weights") % 2**31
            policy = new_tiny_policy(env, seed=seed, max_observation_tokens=limit, packing=config.packing)
            torch.nn.Module.to(policy.model, torch.device(home), dtype)
        else:
            policy = load_policy(
                config.model, dtype=dtype, device=home, max_observation_tokens=limit, packing=config.packing
            )
        Head.check(policy.model)
    policy = ranks.hand_out(policy)
    if config.gradient_checkpointing:
        policy.checkpoint_activations()
    return policy


def clone_expert(config: GRPOConfig, env: gym.Env[str, str], policy: Policy, device: str, display: Display) -> None:
    """Clones the expert into the policy, on `device`, and leaves it where it was."""
    home = policy.model.device
    torch.nn.Module.to(policy.model, torch.device(device))
    with display.warm_start(config.warm_start.max_batches + config.warm_start.polish_batches) as on_batch:
        cloned = cached_warm_start(cache_dir(), env, policy, config.warm_start, seed=config.seed, on_batch=on_batch)
    torch.nn.Module.to(policy.model, home)
    display.note(f"warm start: loss {cloned['warm_start/loss']:.3f} after {cloned['warm_start/steps']:.0f} batches")


def reference_policy(
    policy: Policy, config: GRPOConfig, run_dir: Path, device: str, ranks: Ranks, *, first: bool
) -> Policy | None:
    """The frozen policy of the KL term: the one that the first update starts from, kept in the run folder.

    With LoRA it is the policy itself, whose own weights are frozen.
    """
    if not config.kl_coef:
        return None
    if config.lora_rank:
        return policy
    folder = run_dir / "reference"
    if first:
        reference = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
        if ranks.first:
            policy.save(folder)
    else:
        home, dtype = str(policy.model.device), policy.model.dtype
        reference = ranks.hand_out(
            load_policy(folder, dtype=dtype, device=home, packing=config.packing) if ranks.first else None
        )
    reference.model.eval().requires_grad_(False)
    ranks.shard(reference, device)
    return reference


def slot_count(config: GRPOConfig, ranks: Ranks) -> int:
    """This rank's environments."""
    episodes = config.tasks_per_update * config.group_size
    return -(-min(config.slots or episodes, episodes) // ranks.size)


def environment(config: GRPOConfig, ranks: Ranks) -> str | EnvSpec:
    """What `gym.make` makes an environment from, on this machine or in Ray actors."""
    if config.env_workers == "local":
        return config.env
    if ranks.size > 1 and not config.ray_address:
        raise ConfigError(
            "with torchrun, --env-workers ray needs a cluster that all ranks share; run `ray start --head` and give "
            "--ray-address auto"
        )
    actors = shared_actors(
        math.ceil(slot_count(config, ranks) / config.ray_actor_slots),
        address=config.ray_address,
        cpus=config.ray_actor_cpus,
        timeout_s=config.ray_timeout_s,
    )
    return in_actors(config.env, actors)


def teacher(config: GRPOConfig, env_id: str | EnvSpec) -> gym.Env[str, str]:
    """An environment to ask for tasks and demonstrations: on this machine, which is faster, if it can be made here."""
    try:
        env = make_environment(config.env, config.environment_args())
    except MissingBackendError:
        if config.env_workers == "local":
            raise
        env = make_environment(env_id, config.environment_args())
    return _hinted(env, config) if config.budget_hint else env


def _hinted(env: gym.Env[str, str], config: GRPOConfig) -> gym.Env[str, str]:
    """For the tiny model's tokenizer and demonstrations: each has a K of its own, since K will move in training."""
    low = min(config.k0, config.k_max)
    draws = np.random.default_rng(derive_seed(config.seed, "hints")).integers(low, config.k_max + 1, size=2000)
    controller = eh_gym.StagedHorizon({episode: int(k) for episode, k in enumerate(draws)})
    return eh_gym.BudgetHint(eh_gym.ElasticTimeLimit(env, controller, update_every=1), config.budget_hint)
