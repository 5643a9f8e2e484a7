#!/usr/bin/env python
"""What a horizon controller does with a distribution of episode lengths, without a model.

An episode needs a number of steps, drawn from a law. It succeeds if that is at most its K; otherwise it is stopped at
K. The agent does not learn. The table shows K, success and steps; its last row is the last quarter of the run.

    python examples/simulate.py --controller elastic --settings '{"k0": 10, "rounding": "floor-state"}' --law appworld
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist

import numpy as np

from eh_gym import EpisodeOutcome, HorizonController, KeyedHorizon, make_controller
from eh_gym.horizon.controller import episode_horizon


def log_normal(least: int, median: float, p90: float, longest: int) -> np.ndarray:
    """A log-normal of whole steps, shifted so that the shortest length is `least`; longer lengths count as `longest`.

    Returns:
        float64 [longest]: place i has the probability of i + 1 steps.
    """
    shift = least - 0.5
    sigma = math.log((p90 - shift) / (median - shift)) / NormalDist().inv_cdf(0.9)
    law = NormalDist(math.log(median - shift), sigma)
    ends = [0.0 if n < least else law.cdf(math.log(n + 0.5 - shift)) for n in range(longest)]
    return np.diff([*ends, 1.0])


# The paper's table "Quantile statistics of successful trajectory lengths at training step 100": min, P50, P90, max. And
# 70 % of 3 to 9 steps with 30 % of 25 to 45: a gap below which K can stay.
LAWS = {
    "appworld": log_normal(9, 14, 37.21, 50),
    "bfcl": log_normal(1, 11, 24.29, 50),
    "gap": np.repeat([0, 0.1, 0, 0.3 / 21], [2, 7, 15, 21]),
}


def law_of_log(folder: Path) -> np.ndarray:
    """The lengths of the successes in an episode log, such as RUN/episodes. None is longer than the K of its
    episode.
    """
    lines = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    counts = np.bincount([line["length"] for line in lines if line["success"]])[1:]
    if not counts.sum():
        raise SystemExit(f"--log {folder} has no success; give the episodes/ of an agent that succeeds")
    return counts / counts.sum()


def simulate(make: Callable[[], HorizonController], law: np.ndarray, sizes: argparse.Namespace) -> np.ndarray:
    """Plays all runs. The episodes of a group need the same steps; a task of the "kind" "long" needs more than 14.

    Returns:
        float64 [runs, updates, 3]: the mean K, the share of successes, and the mean number of steps of an update's
        episodes.
    """
    groups = sizes.episodes // sizes.group
    rows = np.zeros((sizes.runs, sizes.updates, 3))
    for run in range(sizes.runs):
        controller, rng = make(), np.random.default_rng([sizes.seed, run])
        for update in range(sizes.updates):
            needed = rng.choice(len(law), groups, p=law) + 1
            for n in np.repeat(needed, sizes.group).tolist():
                info = {"kind": "long" if n > 14 else "short"}
                k = episode_horizon(controller, info, None)
                controller.record(EpisodeOutcome(min(n, k), k, n <= k, n > k, info=info))
                rows[run, update] += k, n <= k, min(n, k)
            controller.update()
    return rows / (groups * sizes.group)


def main(argv: Sequence[str] | None = None) -> np.ndarray:
    """Plays the runs, prints the table, and returns the rows of `simulate`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--controller", default="elastic", help="the name of a controller, or MODULE:CLASS")
    parser.add_argument("--settings", default="{}", type=json.loads, help="the controller's arguments, a JSON object")
    parser.add_argument("--key", help="keep a controller for each value of this key of the info; the only key is kind")
    parser.add_argument("--law", choices=LAWS, default="appworld", help="the steps that episodes need")
    parser.add_argument("--log", type=Path, help="an episode log whose successes take the place of the law")
    parser.add_argument("--episodes", type=int, default=128, help="the episodes of an update")
    parser.add_argument("--group", type=int, default=1, help="the episodes of one task, which need the same steps")
    parser.add_argument("--updates", type=int, default=200, help="the updates of a run")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)

    one = partial(make_controller, options.controller, **options.settings)
    make = partial(KeyedHorizon, one, options.key) if options.key else one
    law = law_of_log(options.log) if options.log else LAWS[options.law]
    rows = simulate(make, law, options)
    print(f"{'updates':>12}{'K':>8}{'± runs':>8}{'success':>10}{'steps':>8}")
    tenths = np.array_split(np.arange(options.updates), min(10, options.updates))
    for part in [*tenths, np.arange(options.updates * 3 // 4, options.updates)]:
        of_runs = rows[:, part].mean(axis=1)
        k, success, steps = of_runs.mean(axis=0)
        print(f"{f'{part[0]} to {part[-1]}':>12}{k:8.1f}{of_runs[:, 0].std():8.2f}{success:10.3f}{steps:8.1f}")
    return rows


if __name__ == "__main__":
    main()
