"""The settings of a training run that nobody gives, by the kind of run: one table, and what chooses the row.

Every default that is not here is that of its field: the paper's (Table "Complete hyperparameter settings").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from envs.mixed import read_environments
from harness.settings.warm_start import WarmStart

__all__ = ["DECISIVE", "defaults_for", "kind_of"]

DECISIVE = ("env", "split", "model", "lora_rank", "sampler")
"""The settings that choose the kind of a run."""

_LARGE: Mapping[str, Any] = dict(threads=0, dtype="bfloat16", gradient_checkpointing=True)

# The LoRA recipes: ten times the paper's learning rate, as is usual, because a step of 1e-6 is lost when adapters are merged into
# bfloat16 weights; and weights for what vLLM rounds otherwise than the trainer.
_LORA: Mapping[str, Any] = dict(_LARGE, learning_rate=1e-5, tis_cap=2.0)

_TINY: Mapping[str, Any] = dict(
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
    stages="0:15,15:20,30:30,45:50",
    eval_rollouts=1,
    warm_start=WarmStart(
        episodes=600, max_optimal_steps=9, max_batches=500, learning_rate=3e-3, batch_tokens=600, polish_batches=100
    ),
)

_TINY_BFCL: Mapping[str, Any] = dict(
    _TINY,
    updates=10,
    env_threads=64,
    max_action_tokens=128,
    max_observation_tokens=96,
    learning_rate=1e-4,
    tokens_per_microbatch=8192,
    k0=15,
    stages="0:15,3:20,5:30,7:50",
    linear_increment=4.0,
    eval_tasks=32,
    # The clone learns only tasks with short transcripts, and well enough that whole episodes succeed.
    warm_start=WarmStart(
        episodes=480,
        max_tokens=400,
        loss_target=0.04,
        max_batches=600,
        learning_rate=3e-3,
        batch_tokens=2048,
        polish_batches=150,
        polish_waste=0.0,
        polish_learning_rate=5e-4,
    ),
)

_KINDS: Mapping[str, Mapping[str, Any]] = {
    "large": _LARGE,
    "large, LoRA": _LORA,
    "large, LoRA, vllm": dict(_LORA, gpu_memory_utilization=0.65),  # the trainer needs little of the GPU
    "tiny, cabinets": _TINY,
    "tiny, BFCL": _TINY_BFCL,
    "tiny, AppWorld": dict(
        _TINY_BFCL,
        updates=5,
        tasks_per_update=4,
        max_action_tokens=160,
        stages="0:15,1:20,2:30,3:50",
        eval_tasks=12,
        warm_start=dataclasses.replace(_TINY_BFCL["warm_start"], max_tokens=2048, batch_tokens=4096, max_batches=400),
    ),
}


def kind_of(env: str, model: str, lora_rank: int, sampler: str) -> str:
    """Returns the kind of a run, a row of the table.

    >>> kind_of("EH-BFCL-v0", "Qwen/Qwen2.5-7B-Instruct", 32, "vllm")
    'large, LoRA, vllm'
    >>> kind_of("EH-Cabinet-v0", "tiny", 0, "transformers")
    'tiny, cabinets'
    """
    if model != "tiny":
        return "large" if not lora_rank else "large, LoRA, vllm" if sampler == "vllm" else "large, LoRA"
    for benchmark, prefix in (("AppWorld", "EH-AppWorld"), ("BFCL", "EH-BFCL")):
        if any(name.startswith(prefix) for name in _names(env)):
            return f"tiny, {benchmark}"
    return "tiny, cabinets"


def defaults_for(env: str, split: str, model: str, lora_rank: int, sampler: str) -> Mapping[str, Any]:
    """Returns the settings whose default is another one than that of their field. The arguments are `DECISIVE`.

    >>> defaults_for("EH-Cabinet-v0", "", "tiny", 0, "transformers")["updates"]
    60
    """
    found = _KINDS[kind_of(env, model, lora_rank, sampler)]
    if any(name.startswith("EH-AppWorld") for name in _names(env)):
        # Its test splits are for final scores; the mini world has one split.
        return {**found, "eval_split": "mini" if split == "mini" else "dev"}
    return found


def _names(env: str) -> list[str]:
    """The ids of the environments, without the module of MODULE:ID."""
    return [name.rpartition(":")[2] for name in read_environments(env)]
