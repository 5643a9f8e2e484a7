"""EH-CabinetLocked from K0 = 10: which controllers learn the long tasks, and with which share of a fixed 50's tokens.

    python benchmarks/false_plateau.py --runs runs/false-plateau --jobs 2

Long tasks have a lock and take 14 steps or more. The warm start shows none of them. Each setting is trained with
`harness.grpo` and then plays held-out tasks at K = 50. Finished runs are not run again. A killed run is resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
from flags import SMALL_RUN, command, new_parser, parse, run, trained

from envs.cabinet.tasks import make_task, task_ids
from harness.evaluation.play import evaluation_requests, play_policy
from harness.machine.runtime import pick_dtype, set_threads
from harness.model.policy import load_policy
from harness.records.files import write_whole
from harness.records.metrics import read_metrics
from harness.records.versions import cpu_name
from harness.rollout.environment import Environments
from harness.sampling.transformers import TransformersSampler
from harness.settings.rollout import Rollout

ENV = "EH-CabinetLocked-v0"
LONG = 14  # the fewest steps that the expert takes on a task with a lock
# A controller per length of the expert's solution. While a length has no successes, its K grows.
KINDS = "--statistic p90 --alpha 0.5 --horizon-key optimal_steps --min-successes 8"

SETTINGS = {
    "fixed 50": "--wrapper fixed --k0 50",
    "a K for each kind, 56 updates": KINDS + " --delta 10 --cold-growth 1 --updates 56",
    "P90 + 15, alpha 0.5": "--statistic p90 --delta 15 --alpha 0.5",
    "the paper's": "",
    "the paper's, 78 updates": "--updates 78",
    "a K for each kind, delta 10, 70 updates": KINDS + " --delta 10 --cold-growth 1 --updates 70",
}
"""The flags of `harness.grpo` for each setting. The others are compared with the first."""

FIRST, *DEFAULT = list(SETTINGS)[:5]


def train(folder: Path, seed: int, flags: list[str], tasks: int) -> dict[str, float]:
    """Trains and measures one run, unless its result exists."""
    done = folder / "result.json"
    if not done.exists():
        paper = ["--truncated-weight", "1"]  # unless a setting says otherwise
        trained(folder, ["--env", ENV, "--seed", str(seed), "--eval-tasks", "0", *paper, *flags])
        # In a separate process, so that evaluations also run in parallel.
        measuring = [sys.executable, __file__, "--measure", str(folder), "--tasks", str(tasks)]
        subprocess.run(measuring, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return dict(json.loads(done.read_text()))


def measure(folder: Path, tasks: int) -> None:
    """Plays held-out tasks with the trained policy, so many of them long, and writes ``result.json``."""
    set_threads(1, 0)
    policy = load_policy(folder / "model", dtype=pick_dtype("float32", "cpu"), device="cpu")
    held_out = task_ids("test")[:2000]
    optima = {task: make_task(task, locked=True).optimal_steps for task in held_out}

    def success(tasks: list[str], temperature: float, rollouts: int) -> float:
        played = play_policy(
            Environments(ENV, {"split": "test"}, slots=64, threads=0),
            TransformersSampler(policy.model),
            policy.chat,
            evaluation_requests(tasks, rollouts, seed=123),
            Rollout(rollout="lockstep", temperature=temperature, max_action_tokens=6),
            horizon=50,
        )
        return float(np.mean([t.success for t in played]))

    long = [task for task in held_out if optima[task] >= LONG][:tasks]
    short = [task for task in held_out if optima[task] < LONG][: tasks * 2 // 3]
    last = read_metrics(folder / "metrics.jsonl")[-1]
    result = {"tokens": last["tokens/total"], "k": last["horizon/k"], "long": success(long, 1.0, 2)}
    result |= {"long_greedy": success(long, 0.0, 1), "short": success(short, 1.0, 1)}
    write_whole(folder / "result.json", json.dumps(result))


def table(results: pd.DataFrame) -> str:
    """Returns the table, of the results by setting and seed: one line per run, then one line per setting."""
    first = results.xs(FIRST)
    lines = [f"{'':44} {'seed':>4} {'tokens':>9} {'share':>6} {'long':>6} {'greedy':>6} {'short':>6} {'last K':>6}"]
    means = ["", f"{'mean ± std over the seeds':44} {'share':>11} {'long':>13} {'goal met':>9}"]
    for name, of in results.groupby(level=0, sort=False):
        of, share = of.xs(name), of.xs(name)["tokens"] / first["tokens"]
        for seed, r in of.iterrows():
            numbers = f"{r.long:6.3f} {r.long_greedy:6.3f} {r.short:6.3f} {r.k:6.0f}"
            lines.append(f"{name:44} {seed:4} {r.tokens:9.0f} {share[seed]:6.2f} {numbers}")
        met = ((share <= 0.7) & (of["long"] >= first["long"])).sum()
        goal = "" if name == FIRST else f"{met} of {len(of)}"
        of = of["long"]
        spread = f"{share.mean():5.2f} ±{share.std(ddof=0):4.2f} {of.mean():6.3f} ± {of.std(ddof=0):4.3f}"
        means.append(f"{name:44} {spread} {goal:>9}")
    return "\n".join(lines + means)


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/false-plateau"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--settings", nargs="+", default=DEFAULT, choices=list(SETTINGS))
    parser.add_argument("--jobs", type=int, default=1, help="the number of runs at once, each on its own core")
    parser.add_argument("--tasks", type=int, default=96, help="held-out long tasks; of short ones two thirds as many")
    parser.add_argument("--measure", type=Path, default=None, help=argparse.SUPPRESS)
    args = parse(parser, runs=Path("runs/false-plateau-smoke"), seeds=[0], settings=[DEFAULT[0]], tasks=3)
    if args.measure is not None:
        measure(args.measure, args.tasks)
        return
    wanted = [(name, seed) for seed in args.seeds for name in dict.fromkeys([FIRST, *args.settings])]

    def carry_out(which: tuple[str, int]) -> dict[str, float]:
        name, seed = which
        folder = args.runs / f"{re.sub(r'[^a-z0-9.]+', '-', name.lower())}-seed{seed}"
        return train(folder, seed, [*SETTINGS[name].split(), *(SMALL_RUN if args.smoke else [])], args.tasks)

    with ThreadPoolExecutor(args.jobs) as pool:
        results = pd.DataFrame(list(pool.map(carry_out, wanted)), pd.MultiIndex.from_tuples(wanted))
    print(command())
    print(
        f"{ENV}, 64 episodes an update; tokens of training; success at K = 50 on held-out tasks: {args.tasks} long",
        end="",
    )
    print(f" ones, two sampled episodes each and one greedy, and {args.tasks * 2 // 3} short ones; {cpu_name()}")
    print(table(results))


if __name__ == "__main__":
    run(main)
