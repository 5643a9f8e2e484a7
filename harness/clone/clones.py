"""The clones of the experts. Runs with the same settings share a clone."""

import os
from pathlib import Path

import gymnasium as gym
import torch

from envs.cache import cache_dir
from envs.expert import check_expert
from harness.clone.cloning import clone_key, is_pretrained, warm_start
from harness.model.lora import add_lora
from harness.model.policy import Policy
from harness.records.files import make_folder, whole_folder
from harness.settings.environment import GIVEN
from harness.settings.grpo import GRPOConfig
from harness.terminal.display import Display
from harness.types.seeding import derive_seed


def clone_expert(
    config: GRPOConfig, env: gym.Env[str, str], policy: Policy, device: str, display: Display, run: Path
) -> Path:
    """Returns a model folder: the policy with the expert cloned into it. If it is missing, `policy` is trained.

    The folder is in the cache's ``clones``, or in the run's folder for a Python program's own environment, whose code
    can't be compared.

    With LoRA, a pretrained model learns in its adapters. They are merged into the weights, so the reference of the KL
    term includes the clone. From a tiny model's random weights, adapters alone learn little, so all are trained.
    """
    check_expert(env, "the warm start", "leave it out with --warm-start.episodes 0")
    start = config.warm_start
    seed = config.seed if start.seed < 0 else start.seed
    rank = config.optimizer.lora_rank if is_pretrained(policy) else 0
    folder = run / "clone"
    if not config.environment.env.startswith(GIVEN):
        make_folder(cache_dir() / "clones", "EH_CACHE_DIR")
        folder = cache_dir() / "clones" / clone_key(env, policy, start, lora_rank=rank, seed=seed, device=device)
    if folder.is_dir():
        os.utime(folder)  # for the list of clones
        display.note(f"warm start: taken from {folder}, where an earlier run left it")
        return folder
    torch.nn.Module.to(policy.model, torch.device(device))
    if rank:
        add_lora(policy.model, rank, seed=derive_seed(seed, "adapters") % 2**31)
    display.note(f"warm start: the expert plays {start.episodes} tasks")
    with display.warm_start(start) as (on_episode, on_batch):
        cloned = warm_start(env, policy, start, seed=seed, on_batch=on_batch, on_episode=on_episode)
    with whole_folder(folder) as part:
        policy.save(part)
    few = " (no other task is short enough)" if cloned.demonstrations < start.episodes else ""
    display.note(
        f"warm start: loss {cloned.loss:.3f} after {cloned.batches} batches of {cloned.demonstrations} "
        f"demonstrations{few}, {cloned.tokens:,} tokens; the clone is {folder}"
    )
    return folder
