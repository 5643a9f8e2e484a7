#!/usr/bin/env python
"""TRL's own tool loop on EH-Cabinet, with K from `ElasticToolCalls`: a tiny model that calls one tool, `act`.

This command draws the figure of docs/integrations/trl.md (one CPU core, about 10 minutes a run with the warm start):

    python examples/trl_tools.py --out examples/figures/trl-tools.svg

The model is new: a Qwen2 with the tool-call template of Qwen2.5 and a tokenizer made from the expert's episodes. TRL's
SFTTrainer clones the expert on short tasks first. Then TRL's GRPOTrainer plays the episodes itself, through its
`environment_factory`. `examples/trl_grpo.py` has TRL's other way, the `rollout_func`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import trl
import tyro
from datasets import Dataset
from drawing import BLUE, ORANGE, band, panels, save, smooth
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, PrinterCallback
from transformers.utils import get_json_schema

from eh_gym import ElasticHorizon
from eh_gym.integrations.tools import ToolEnvironment
from eh_gym.integrations.trl import ElasticToolCalls
from harness.policy.shape import ModelShape
from harness.quickstart.expert import demonstrate
from harness.quickstart.tiny import fresh_qwen2

ENV = "EH-Cabinet-v0"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Settings:
    """The settings of the runs."""

    k0: tuple[int, ...] = (10, 50)
    """The values of K at the start, with one run for each."""
    updates: int = 30
    """The number of GRPO updates."""
    tasks_per_update: int = 6
    """The number of groups in an update."""
    group_size: int = 6
    """The number of episodes in a group."""
    demonstrations: int = 600
    """The number of episodes of the expert for the tokenizer and the warm start."""
    max_optimal_steps: int = 12
    """The warm start has only tasks that the expert solves in so many steps."""
    clone_steps: int = 400
    """The number of batches of 4 episodes that the warm start takes."""
    learning_rate: float = 5e-4
    """GRPO's learning rate."""
    min_successes: int = 20
    """The number of remembered successes from which on K moves."""
    seed: int = 0
    """The seed of the model, the tasks and the sampling."""
    out: Path | None = None
    """The file for the figure."""


def conversations(settings: Settings, task_ids: Sequence[str]) -> list[dict[str, Any]]:
    """The expert's episodes as TRL shows them to the model: each action is a call of `act`, and after the end comes "done"."""
    env, told = gym.make(ENV, split="train"), ToolEnvironment(ENV, split="train")
    rng, tools, rows = np.random.default_rng(settings.seed), [get_json_schema(told.act)], []
    for task_id in task_ids:
        shown = demonstrate(
            env, task_id, waste=0.0, max_steps=60, rng=rng, max_optimal_steps=settings.max_optimal_steps
        )
        if shown is None:
            continue
        messages: list[dict[str, Any]] = [{"role": "user", "content": told.reset(task_id=task_id)}]
        for action, answer in zip(shown.actions, shown.observations[1:], strict=True):
            call = {"type": "function", "function": {"name": "act", "arguments": {"action": action}}}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": answer},
            ]
        rows.append({"messages": [*messages, {"role": "assistant", "content": "done"}], "tools": tools})
    return rows


def new_tokenizer(rows: list[dict[str, Any]]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of the expert's episodes. Letters of drawers, digits and line ends are tokens of their own."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d|\b[a-z]\b|\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text("utf-8")
    texts = [tokenizer.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False) for row in rows[:100]]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1024, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    again = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    again.chat_template = tokenizer.chat_template
    return again


def cloned(settings: Settings, folder: str) -> tuple[torch.nn.Module, PreTrainedTokenizerFast]:
    """A new model that has seen the expert solve short tasks."""
    task_ids = gym.make(ENV, split="train").unwrapped.task_ids
    drawn = np.random.default_rng(settings.seed).choice(len(task_ids), settings.demonstrations, replace=False)
    rows = conversations(settings, [task_ids[int(i)] for i in drawn])
    tokenizer = new_tokenizer(rows)
    shape = ModelShape(
        vocab=len(tokenizer), width=64, ffn=192, layers=2, heads=2, kv_heads=2, tied=True, positions=4096
    )
    ids = {"eos_id": tokenizer.eos_token_id, "pad_id": tokenizer.pad_token_id}
    model = fresh_qwen2(shape, **ids, initializer_range=0.1, seed=settings.seed)
    sft = trl.SFTConfig(
        output_dir=folder,
        max_steps=settings.clone_steps,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        warmup_steps=20,
        assistant_only_loss=True,
        max_length=None,
        **quiet(settings),
    )
    trainer = trl.SFTTrainer(model, sft, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return model, tokenizer


def quiet(settings: Settings) -> dict[str, Any]:
    """What both trainers are told."""
    return {
        "seed": settings.seed,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }


def train(settings: Settings, k0: int) -> list[dict[str, float]]:
    """Trains one run; returns TRL's log, with one row per update."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = cloned(settings, folder)
        task_ids, rng = gym.make(ENV, split="train").unwrapped.task_ids, np.random.default_rng(settings.seed + 1)
        tasks = [
            task_ids[int(i)] for i in rng.integers(len(task_ids), size=settings.updates * settings.tasks_per_update)
        ]
        rows = [{"prompt": [{"role": "user", "content": ""}], "task_id": task_id} for task_id in tasks]
        grpo = trl.GRPOConfig(
            output_dir=folder,
            max_steps=settings.updates,
            num_generations=settings.group_size,
            per_device_train_batch_size=settings.tasks_per_update * settings.group_size,
            max_completion_length=3000,
            learning_rate=settings.learning_rate,
            warmup_steps=3,
            adam_beta2=0.99,
            shuffle_dataset=False,
            **quiet(settings),
        )
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=None,
            args=grpo,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=lambda: ToolEnvironment(ENV, split="train"),
        )
        ElasticToolCalls(trainer, ElasticHorizon(k0=k0, min_successes=settings.min_successes))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return [row for row in trainer.state.log_history if "horizon/k" in row]


def draw(logs: dict[int, list[dict[str, float]]], path: Path) -> None:
    """Draws K, and the shares of successful and truncated episodes, by update."""
    figure, axes = panels(3, title="TRL's own tool loop on EH-Cabinet, with ElasticToolCalls")
    top, middle, bottom = axes[:, 0]
    for k0, log in logs.items():
        x, color = range(1, len(log) + 1), BLUE if k0 <= 15 else ORANGE
        band(top, x, [[row["horizon/k"] for row in log]], f"from K0 = {k0}", color)
        for axis, name in ((middle, "rollout/success"), (bottom, "rollout/truncated")):
            band(axis, x, [smooth([row[name] for row in log], 5)], f"from K0 = {k0}", color)
            axis.set_ylim(0, 1)
    top.set_ylim(0, 52)
    top.set_ylabel("K, rounds")
    middle.set_ylabel("success")
    bottom.set_ylabel("truncated")
    bottom.set_xlabel("update; shares are means of 5")
    top.legend(fontsize=8, frameon=False)
    save(figure, path)


def main(argv: Sequence[str] | None = None) -> dict[int, list[dict[str, float]]]:
    """Trains every run, prints its rows, and draws them."""
    settings = tyro.cli(Settings, args=argv)
    logs = {}
    for k0 in settings.k0:
        logs[k0] = train(settings, k0)
        print(f"K0 = {k0}\nupdate   K  K real  boundary  success  truncated")
        for i, row in enumerate(logs[k0], 1):
            if i == 1 or i % 5 == 0 or i == len(logs[k0]):
                shares = f"{row['rollout/success']:8.2f} {row['rollout/truncated']:10.2f}"
                boundary = float("nan") if row["horizon/boundary"] is None else row["horizon/boundary"]
                print(
                    f"{i:6} {row['horizon/k']:3.0f} {row['horizon/k_real']:7.1f} {boundary:9.1f} {shares}", flush=True
                )
    if settings.out is not None:
        draw(logs, settings.out)
    return logs


if __name__ == "__main__":
    main(sys.argv[1:])
