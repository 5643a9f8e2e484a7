"""Clones AppWorld's mini world into SmolLM2-135M-Instruct: how much does a model of this size solve there?

    python -m harness.models install smollm2-135m && python -m envs install appworld
    python benchmarks/smollm2_appworld.py
    python benchmarks/smollm2_appworld.py --smoke

Each of the 15 scenarios has three tasks, with other people and values. The clone sees the solutions of the first two. The third
is held out. Longer observations than 200 tokens lose their middle, because the API documents fill the context otherwise. What is
already in the folder, the clone or episodes of an evaluation, is not computed again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from flags import command, new_parser, parse, run

from envs.appworld.env import AppWorldEnv
from harness import evaluate
from harness.policy.policy import load_policy
from harness.quickstart.cloning import warm_start
from harness.run.runtime import set_threads
from harness.run.versions import cpu_name
from harness.settings.warm_start import WarmStart

ENV = "EH-AppWorld-Variations-v0"
SHARED = [
    "--env",
    ENV,
    "--dtype",
    "bfloat16",
    "--threads",
    "1",
    "--max-observation-tokens",
    "200",
]
VARIATIONS = {"train": "12", "test": "3"}


class Variations(AppWorldEnv):
    """The mini world's tasks, divided by the last digit of their id."""

    def __init__(self, split: str = "train", **arguments: Any) -> None:
        super().__init__("mini", **arguments)
        self.task_ids = [task for task in self.task_ids if task[-1] in VARIATIONS[split]]


def main() -> None:
    """The command line."""
    parser = new_parser(__doc__)
    parser.add_argument("--max-batches", type=int, default=120)
    parser.add_argument("--loss-target", type=float, default=0.01, help="of the cloning, in nats per token")
    parser.add_argument("--learning-rate", type=float, default=2e-4, help="of the cloning")
    parser.add_argument(
        "--horizon", type=int, default=20, help="the K of the evaluations; the expert needs 3 to 12 steps"
    )
    parser.add_argument("--tasks", type=int, default=30, help="the most tasks of an evaluation")
    parser.add_argument("--out", type=Path, default=Path("runs/smollm2-appworld"))
    options = parse(parser, max_batches=1, horizon=1, tasks=1, out=Path("runs/smollm2-appworld-smoke"))
    print(command(), flush=True)
    gym.register(ENV, entry_point=Variations, disable_env_checker=True)
    clone = options.out / "clone"
    if not (clone / "warm_start.json").exists():  # which is written last
        settings = WarmStart(
            episodes=30,
            max_optimal_steps=0,
            loss_target=options.loss_target,
            learning_rate=options.learning_rate,
            max_batches=options.max_batches,
            polish_batches=0,
            batch_tokens=4096,
        )
        set_threads(1)
        policy = load_policy("smollm2-135m", dtype=torch.bfloat16, device="cpu", max_observation_tokens=200)
        metrics = warm_start(gym.make(ENV, split="train"), policy, settings, seed=0)
        policy.save(clone)
        (clone / "warm_start.json").write_text(json.dumps({"metrics": metrics}))
    print(json.loads((clone / "warm_start.json").read_text())["metrics"])
    for split, temperature in (("test", 0), ("train", 0), ("test", 1)):
        print(f"\nvariations {VARIATIONS[split]}, temperature {temperature}")
        played = {
            "policy": clone,
            "split": split,
            "temperature": temperature,
            "horizon": options.horizon,
            "tasks": min(options.tasks, 15 * len(VARIATIONS[split])),
            "rollouts": 1,
            "rollout": "lockstep",
            "slots": 8,  # more take more than 5 GB
            "max-action-tokens": 256,
            "out": options.out / f"{split}-{temperature}",
        }
        evaluate.main([*SHARED, *(word for name, value in played.items() for word in (f"--{name}", str(value)))])
    print(f"{cpu_name()}, torch {torch.__version__}, 1 thread")


if __name__ == "__main__":
    run(main)
