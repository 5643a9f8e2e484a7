"""GRPO of SmolLM2-135M-Instruct on EH-BFCL-v0, from a weak warm start: success on the training tasks over the updates.

    python tools/smollm2.py FOLDER && python -m envs install bfcl
    python benchmarks/smollm2_bfcl.py --model FOLDER --sampler vllm
    python benchmarks/smollm2_bfcl.py --smoke

BFCL's prompts have 1,400 tokens and more, so a CPU can train on few episodes. The run is on the tasks of the training split with
the fewest tokens along the ground truth, of two categories and one domain. Their demonstrations are also those of the warm start.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from flags import command, new_parser, parse, run
from rich.console import Console

from envs.bfcl.env import BFCLEnv
from harness.grpo import train
from harness.run.display import Display
from harness.run.metrics import read_metrics
from harness.run.run_folder import prepare
from harness.run.versions import cpu_name
from harness.settings.grpo import GRPOConfig
from harness.settings.warm_start import WarmStart

ENV = "EH-BFCL-Shortest-v0"
TASKS = [f"multi_turn_{category}_{scenario}" for category in ("base", "miss_param") for scenario in (100, 132)]


class ShortestTasks(BFCLEnv):
    """EH-BFCL with four tasks of the training split; each takes the expert 4 to 6 steps and 1,700 tokens."""

    def __init__(self, split: str = "train", **arguments: Any) -> None:
        super().__init__(split, **arguments)
        assert set(self.task_ids) >= set(TASKS), "they are of the training split"
        self.task_ids = TASKS


def settings(options: argparse.Namespace) -> GRPOConfig:
    """The settings of the run."""
    return GRPOConfig(
        env=ENV,
        env_args="{}",
        model=options.model,
        split="train",
        dtype="bfloat16",
        gradient_checkpointing=True,
        threads=options.threads,
        seed=options.seed,
        out=options.out,
        updates=options.updates,
        warm_start=WarmStart(episodes=len(TASKS), loss_target=options.loss_target),
        tasks_per_update=options.tasks_per_update,
        group_size=options.group_size,
        sampler=options.sampler,
        max_context=2560,
        max_action_tokens=32,
        max_observation_tokens=256,
        env_threads=8,
        learning_rate=options.learning_rate,
        warmup_updates=2,
        rollout="streaming",
        eval_rollouts=8,
        alpha=0.1,
        k0=8,
        k_min=5,
        k_max=10,
        delta=3,
        min_successes=2,
        tokens_per_microbatch=6000,
        checkpoint_every=6,
        keep_checkpoints=1,
        eval_tasks=0,
    )


def main() -> None:
    """The command line."""
    parser = new_parser(__doc__)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--sampler", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--updates", type=int, default=18)
    parser.add_argument("--loss-target", type=float, default=0.1, help="of the warm start, in nats per token")
    parser.add_argument("--tasks-per-update", type=int, default=1)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/smollm2-bfcl"))
    options = parse(parser, updates=1, group_size=2, loss_target=3.0, out=Path("runs/smollm2-bfcl-smoke"))
    print(command(), flush=True)
    gym.register(ENV, entry_point=ShortestTasks, disable_env_checker=True)
    config = settings(options)
    if (options.out / "config.json").exists():  # a run that was stopped goes on
        config = dataclasses.replace(config, resume=options.out)
    config, run_dir, resume = prepare(config)
    display = Display(Console(width=140))
    display.plan(config, run_dir, resume=resume)
    train(config, run_dir, display, resume=resume)
    rows = read_metrics(options.out / "metrics.jsonl")
    whole = len(TASKS) // options.tasks_per_update or 1  # updates in which every task comes once
    for first in range(0, len(rows), whole):
        part = rows[first : first + whole]
        share = sum(row["rollout/success"] for row in part) / len(part)
        print(f"updates {first:2} to {first + len(part) - 1:2}: success {share:.3f}")
    print(f"{cpu_name()}, torch {torch.__version__}, {options.threads} threads")


if __name__ == "__main__":
    run(main)
