"""The defaults of a command line: the paper's, the quick start's, or for SmolLM2 a CPU's. A recipe overrides them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from envs.mixed import read_environments
from harness.settings.grpo import GRPOConfig
from harness.settings.recipe import read_recipe, with_recipe
from harness.settings.warm_start import WarmStart

__all__ = ["SMALL_CHAT_MODEL", "flag_of", "preset"]

SMALL_CHAT_MODEL = "smollm2-135m"
"""The pretrained model that a CPU can train."""

# For the cabinets. A warm start of more batches leaves nothing to explore: docs/warm-start.md.
_SMOLLM2 = GRPOConfig(
    dtype="bfloat16",
    updates=10,
    tasks_per_update=4,
    env_threads=0,
    rollout="lockstep",
    max_action_tokens=8,
    learning_rate=4e-5,
    warmup_updates=2,
    tokens_per_microbatch=4000,
    k0=10,
    alpha=0.3,
    linear_increment=40 / 10,
    stage_updates=1,
    stages="0:15,2:20,5:30,7:50",
    eval_tasks=24,
    eval_rollouts=1,
    eval_every_rollouts=1,
    keep_checkpoints=1,
    warm_start=WarmStart(episodes=200, max_optimal_steps=14, batch_tokens=1500, updates=8),
)

# For EH-BFCL: the domain with the shortest prompts. An update of two groups takes about two minutes. The clone takes a quarter of
# an hour, so all seeds share one.
_SMOLLM2_BFCL = dataclasses.replace(
    _SMOLLM2,
    env_args='{"categories": ["base"], "domains": ["trading"]}',
    updates=8,
    tasks_per_update=2,
    max_action_tokens=96,
    max_observation_tokens=256,
    gradient_checkpointing=True,  # a group has about 6,000 tokens
    tokens_per_microbatch=8000,
    learning_rate=2e-5,
    min_successes=8,
    eval_tasks=12,  # all there are
    warm_start=WarmStart(episodes=30, loss_target=0.05, max_batches=40, learning_rate=2e-4, seed=0),
)


def preset(argv: Sequence[str], change: Callable[[GRPOConfig], GRPOConfig] = lambda c: c) -> GRPOConfig:
    """Returns the defaults for a command line: the paper's, the quick start's for the tiny model, or a CPU's for SmolLM2.

    A recipe overrides them.

    Args:
        argv: The command line.
        change: Changes the defaults before the recipe does.

    >>> config = preset(["--model", "Qwen/Qwen2.5-7B-Instruct"])
    >>> config.learning_rate, config.dtype, config.gradient_checkpointing
    (1e-06, 'bfloat16', True)
    >>> preset([]).updates
    60
    """
    recipe = flag_of(argv, "recipe", "")
    given = read_recipe(Path(recipe), GRPOConfig) if recipe else {}
    env, split, model = (
        flag_of(argv, name, given.get(name, getattr(GRPOConfig, name))) for name in ("env", "split", "model")
    )
    config = change(_defaults(env, split, model))
    if not recipe:
        return config
    return dataclasses.replace(with_recipe(config, given, Path(recipe)), recipe=Path(recipe))


def _defaults(env: str, split: str, model: str) -> GRPOConfig:
    eval_split = GRPOConfig.eval_split
    names = tuple(name.rpartition(":")[2] for name in read_environments(env))  # without the module of MODULE:ID
    appworld = any(name.startswith("EH-AppWorld") for name in names)
    if appworld:  # its test splits are for final scores; the mini world has one split
        eval_split = "mini" if split == "mini" else "dev"
    if model == SMALL_CHAT_MODEL:
        for prefix, settings in (("EH-Cabinet", _SMOLLM2), ("EH-BFCL", _SMOLLM2_BFCL)):
            if all(name.startswith(prefix) for name in names):
                return settings
    if model != "tiny":  # what fits
        return GRPOConfig(threads=0, eval_split=eval_split, dtype="bfloat16", gradient_checkpointing=True)
    quick = GRPOConfig(
        eval_split=eval_split,
        updates=60,
        tasks_per_update=8,
        env_threads=0,
        rollout="lockstep",  # the same seed gives the same metrics
        max_action_tokens=6,
        learning_rate=7e-4,
        warmup_updates=5,
        final_lr_fraction=0.3,
        adam_beta2=0.99,
        weight_decay=0.0,
        truncated_weight=0.5,  # docs/what-we-found.md
        minibatches=2,
        tokens_per_microbatch=6000,
        k0=10,
        linear_increment=40 / 60,
        stage_updates=6,
        stages="0:15,15:20,30:30,45:50",
        eval_rollouts=1,
        warm_start=WarmStart(episodes=600, max_optimal_steps=9, polish_batches=100),
    )
    if not any(name.startswith(("EH-BFCL", "EH-AppWorld")) for name in names):
        return quick
    bfcl = dataclasses.replace(
        quick,
        updates=10,
        tasks_per_update=8,
        env_threads=64,
        max_action_tokens=128,
        max_observation_tokens=96,
        learning_rate=1e-4,
        tokens_per_microbatch=8192,
        k0=15,
        stages="0:15,3:20,5:30,7:50",
        linear_increment=4.0,
        stage_updates=1,
        eval_tasks=32,
        # The clone learns only tasks with short transcripts, and well enough that whole episodes succeed.
        warm_start=WarmStart(
            episodes=480,
            max_tokens=400,
            loss_target=0.04,
            max_batches=600,
            batch_tokens=2048,
            polish_batches=150,
            polish_waste=0.0,
            polish_learning_rate=5e-4,
        ),
    )
    if not appworld:
        return bfcl
    return dataclasses.replace(
        bfcl,
        updates=5,
        tasks_per_update=4,
        max_action_tokens=160,
        stages="0:15,1:20,2:30,3:50",
        eval_tasks=12,
        warm_start=dataclasses.replace(bfcl.warm_start, max_tokens=2048, batch_tokens=4096, max_batches=400),
    )


def flag_of(argv: Sequence[str], name: str, default: str) -> str:
    """Returns the last value of one flag, before the flags are parsed. Like tyro it takes a flag with underscores, too."""
    for i, word in reversed(list(enumerate(argv))):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == f"--{name}":
            if equals:
                return value
            if i + 1 < len(argv):
                return argv[i + 1]
    return default
