"""The policy with which a run begins, loaded or new."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import torch

from harness.machine.ranks import Ranks
from harness.machine.runtime import pick_dtype
from harness.model.policy import Policy, load_policy
from harness.model.tiny import new_tiny_policy
from harness.settings.grpo import GRPOConfig
from harness.settings.reasoning import read_template_kwargs
from harness.types.seeding import derive_seed

__all__ = ["load"]


def load(config: GRPOConfig, env: gym.Env[str, str], device: str, ranks: Ranks, *, clone: Path | None = None) -> Policy:
    """Loads the policy on `device`. Under torchrun, rank 0 keeps it in host memory, and the others have it without weights.

    `clone` takes the place of the model that the settings name.
    """
    policy = None
    if ranks.first:
        home = "cpu" if ranks.sharded else device
        limit, dtype = config.max_observation_tokens or None, pick_dtype(config.dtype, device)
        if config.model == "tiny" and clone is None:
            policy = new_tiny_policy(
                env,
                seed=derive_seed(config.seed, "weights") % 2**31,
                max_observation_tokens=limit,
                max_action_tokens=config.max_action_tokens,
                packing=config.packing,
            )
            torch.nn.Module.to(policy.model, torch.device(home))
            for parameter in policy.model.parameters():  # not the rotary frequencies, which every engine has in float32
                parameter.data = parameter.data.to(dtype)
        else:
            policy = load_policy(
                clone or config.model,
                dtype=dtype,
                device=home,
                max_observation_tokens=limit,
                packing=config.packing,
                template_kwargs=read_template_kwargs(config.chat_template_kwargs),
                reasoning_format=config.reasoning_format,
            )
    policy = ranks.hand_out(policy)
    if config.gradient_checkpointing:
        policy.checkpoint_activations(keep_attention=config.keep_attention)
    return policy
