"""The policy with which a run begins: loaded or new, and with the expert cloned into it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import gymnasium as gym
import torch

from eh_gym.errors import ConfigError
from envs.cache import cache_dir
from harness.policy.lora import add_lora, fold_lora
from harness.policy.policy import Policy, load_policy
from harness.policy.ranks import Ranks
from harness.quickstart.cloning import cached_warm_start, is_pretrained, warm_start
from harness.quickstart.tiny import new_tiny_policy
from harness.run.display import Display
from harness.run.files import make_folder
from harness.run.runtime import pick_dtype
from harness.settings.grpo import GRPOConfig
from harness.settings.reasoning import read_template_kwargs
from harness.types.seeding import derive_seed

__all__ = ["clone_expert", "load"]


def load(config: GRPOConfig, env: gym.Env[str, str], device: str, ranks: Ranks) -> Policy:
    """Loads the policy on `device`. Under torchrun, rank 0 keeps it in host memory, and the others have it without weights."""
    policy = None
    if ranks.first:
        home = "cpu" if ranks.sharded else device
        limit, dtype = config.max_observation_tokens or None, pick_dtype(config.dtype, device)
        if config.model == "tiny":
            seed = derive_seed(config.seed, "weights") % 2**31
            policy = new_tiny_policy(
                env,
                seed=seed,
                max_observation_tokens=limit,
                max_action_tokens=config.max_action_tokens,
                packing=config.packing,
            )
            torch.nn.Module.to(policy.model, torch.device(home))
            for parameter in policy.model.parameters():  # not the rotary frequencies, which every engine has in float32
                parameter.data = parameter.data.to(dtype)
        else:
            policy = load_policy(
                config.model,
                dtype=dtype,
                device=home,
                max_observation_tokens=limit,
                packing=config.packing,
                template_kwargs=read_template_kwargs(config.chat_template_kwargs),
                reasoning_format=config.reasoning_format,
                max_context=config.max_context,
            )
    policy = ranks.hand_out(policy)
    if config.gradient_checkpointing:
        policy.checkpoint_activations(keep_attention=config.keep_attention)
    return policy


def clone_expert(
    config: GRPOConfig, env: gym.Env[str, str], policy: Policy, device: str, display: Display, *, cached: bool = True
) -> dict[str, float]:
    """Clones the expert into the policy, which is on `device` meanwhile. Returns the metrics of the warm start.

    `cached` takes the result of an earlier run with the same settings, and keeps this one for later runs.

    With LoRA, a pretrained model learns in its adapters, so that the optimizer holds nothing else. They are then added to the
    frozen weights, and GRPO begins with new ones. So the KL term's reference, which is the frozen weights, includes the clone. A
    tiny model has random weights, from which adapters alone learn little, so all of its weights are trained.
    """
    home = policy.model.device
    torch.nn.Module.to(policy.model, torch.device(device))
    seed = config.warm_start.seed_for(config.seed)
    in_adapters = config.lora_rank > 0 and is_pretrained(policy)
    if in_adapters:
        add_lora(policy.model, config.lora_rank, seed=derive_seed(seed, "adapters") % 2**31)
    start = config.warm_start.for_model(policy.model.num_parameters(), lora=in_adapters)
    with display.warm_start((start.updates or start.max_batches) + start.polish_batches) as on_batch:
        how: Callable[..., dict[str, float]] = warm_start
        if cached:
            try:
                make_folder(cache_dir() / "warm_start", "EH_CACHE_DIR")
                how = functools.partial(cached_warm_start, cache_dir(), say=display.note)
            except ConfigError as error:
                display.note(f"note: the warm start can't be kept for later runs: {error}")
        cloned = how(env, policy, config.warm_start, seed=seed, on_batch=on_batch)
    if in_adapters:
        fold_lora(policy.model, seed=derive_seed(config.seed, "adapters") % 2**31)
    torch.nn.Module.to(policy.model, home)
    display.warm_started(cloned)
    return cloned
