"""The policy with which a run begins, loaded or new."""

from pathlib import Path

import gymnasium as gym
import torch

from harness.clone.tiny import TOKENIZER_TASKS, new_tiny_policy
from harness.machine.ranks import Ranks
from harness.machine.runtime import pick_dtype, set_threads
from harness.model.policy import Policy, load_policy
from harness.settings.grpo import GRPOConfig
from harness.terminal.display import Display
from harness.types.seeding import derive_seed


def load(
    config: GRPOConfig, env: gym.Env[str, str], device: str, ranks: Ranks, display: Display, clone: Path | None = None
) -> Policy:
    """Loads the policy on `device`. Under torchrun, only rank 0 has the weights, in the memory of its host.

    A `clone` takes the place of the model that the settings name.
    """
    policy = None
    if ranks.first:
        home = "cpu" if ranks.sharded else device
        dtype, packing = pick_dtype(config.model.dtype, device), config.optimizer.packing
        if config.model.model == "tiny" and clone is None:
            with display.episodes("the expert's episodes, for a tokenizer", TOKENIZER_TASKS) as on_episode:
                policy = new_tiny_policy(
                    env,
                    seed=derive_seed(config.seed, "weights") % 2**31,
                    settings=config.model,
                    max_action_tokens=config.rollout.max_action_tokens,
                    packing=packing,
                    on_episode=on_episode,
                )
            torch.nn.Module.to(policy.model, torch.device(home))
            for parameter in policy.model.parameters():  # not the rotary frequencies, which every engine has in float32
                parameter.data = parameter.data.to(dtype)
        else:
            policy = load_policy(clone or config.model.model, config.model, dtype=dtype, device=home, packing=packing)
    policy = ranks.hand_out(policy)
    set_threads(config.model.threads, policy.model.num_parameters())
    if config.optimizer.recompute != "none":
        policy.recompute()
    return policy
