"""Does the K of one elastic run tell which fixed K a sweep would have found? One line per environment, and rank correlations.

    python benchmarks/measured_k.py --seeds 2 --table runs/measured-k.csv
    python benchmarks/measured_k.py --smoke

The environments are the cabinets with chains of several greatest lengths, so the K that an agent needs differs by a factor of
five. In each, the tiny model is trained with fixed K and with the elastic horizon from K0 = 10, otherwise with the quick start's
settings. All are evaluated at K = 50. A sweep's answer has two forms: the K with the most success, and the least K of the band
that cannot be told from it (`harness.experiments.plateau`). Finished runs are not run again; a killed run is resumed.
"""

from __future__ import annotations

import csv
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from flags import SMALL_RUN, command, new_parser, parse, run

from envs.cabinet.tasks import success_ceiling
from harness.experiments.jobs import cpu_cores
from harness.experiments.plateau import Plateau, plateau
from harness.run.metrics import read_metrics
from harness.run.versions import cpu_name

FIXED = (5, 10, 15, 20, 25, 30, 40, 50)
ENVIRONMENTS = {
    f"{env} {longest}": (f"EH-{env}-v0", longest)
    for env, lengths in {"Cabinet": (2, 4, 6, 8, 11), "CabinetOpenEnded": (3, 5, 8), "CabinetLocked": (5, 10)}.items()
    for longest in lengths
}
"""Each environment's name in the table: the cabinet, and the most drawers of a chain."""


@dataclass(frozen=True)
class Measured:
    """One environment's answers.

    Attributes:
        elastic: For each seed, the elastic K: its mean over the last quarter of the updates.
        elastic_success: For each seed, the success of the elastic run at K = 50.
        success: For each fixed K of the training, the success at K = 50 of each seed.
        band: The band of fixed K that cannot be told from the best.
    """

    elastic: list[float]
    elastic_success: list[float]
    success: dict[int, list[float]]
    band: Plateau


def trained(folder: Path, words: Sequence[str]) -> None:
    """Trains one run, unless it is finished."""
    if (folder / "evaluation.json").exists():
        return
    begun = (folder / "config.json").exists()
    arguments = ["--resume", str(folder)] if begun else ["--run-dir", str(folder), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run(
        [sys.executable, "-m", "harness.grpo", *arguments], check=True, env=environment, stdout=subprocess.DEVNULL
    )


def success(folder: Path) -> float:
    """The success of a run on held-out tasks after training, at K = 50, as a share."""
    return float(json.loads((folder / "evaluation.json").read_text())["after"]["sampled"]["mean_at_k"])


def settled(folder: Path) -> float:
    """The mean K of a run over the last quarter of its updates."""
    series = [float(row["horizon/k_real"]) for row in read_metrics(folder / "metrics.jsonl")]
    return statistics.fmean(series[math.floor(0.75 * len(series)) :])


def measured(folder: Path, horizons: Sequence[int], seeds: Sequence[int]) -> Measured:
    """Reads the runs of one environment."""
    by_k = {k: [success(folder / f"K{k}-seed{seed}") for seed in seeds] for k in horizons}
    band = plateau(by_k)
    assert band is not None
    elastic = [folder / f"elastic-seed{seed}" for seed in seeds]
    return Measured([settled(f) for f in elastic], [success(f) for f in elastic], by_k, band)


def ranks(values: list[float]) -> list[float]:
    """Ranks from 1; equal values share their mean rank.

    >>> ranks([10.0, 30.0, 30.0, 20.0])
    [1.0, 3.5, 3.5, 2.0]
    """
    return [sum(other < v for other in values) + (values.count(v) + 1) / 2 for v in values]


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Spearman's coefficient, and its 95 % interval by Fisher's transformation with Fieller's variance, 1.06 / (n - 3)."""
    r = statistics.correlation(ranks(list(x)), ranks(list(y)))
    if len(x) < 4 or abs(r) > 1 - 1e-12:
        return r, math.nan, math.nan
    half = 1.96 * math.sqrt(1.06 / (len(x) - 3))
    return r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def show(found: dict[str, Measured]) -> None:
    """Prints the table and the correlations."""
    print(
        f"\n{'':22} {'needed':>7} {'elastic K':>10} {'best K':>7} {'band':>8} {'success':>8} {'best':>6} {'longest':>8}"
    )
    for name, m in found.items():
        env, longest = ENVIRONMENTS[name]
        locked = "Locked" in env
        needed = next(k for k in range(1, 51) if success_ceiling(k, locked=locked, longest=longest) >= 0.9)
        seeds = "/".join(f"{k:.0f}" for k in m.elastic)
        best = statistics.fmean(m.success[m.band.best])
        print(
            f"{name:22} {needed:7} {seeds:>10} {m.band.best:7} {f'{m.band.low}-{m.band.high}':>8} "
            f"{100 * statistics.fmean(m.elastic_success):8.1f} {100 * best:6.1f} "
            f"{100 * statistics.fmean(m.success[max(m.success)]):8.1f}"
        )
    print(
        "needed: the K in which the expert solves 90 % of the tasks. success: of the elastic run, of the best fixed K and of the"
    )
    print("longest, in %, all at K = 50")
    one = [m.elastic[0] for m in found.values()]
    sweeps = {
        "the least K of the band": [float(m.band.low) for m in found.values()],
        "the best K": [float(m.band.best) for m in found.values()],
    }
    print(f"\nSpearman's rank correlation over {len(found)} environments, with its 95 % interval")
    for what, values in sweeps.items():
        if len(set(values)) > 1 and len(set(one)) > 1:
            r, low, high = rank_correlation(one, values)
            print(f"the elastic K of one seed and {what}: {r:+.2f} ({low:+.2f} to {high:+.2f})")
    inside = sum(m.band.low <= m.elastic[0] <= m.band.high for m in found.values())
    print(f"the elastic K of one seed is in the band in {inside} of {len(found)} environments")


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/measured-k"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=0, help="the number of runs at once; 0: one per core")
    parser.add_argument("--fixed", type=int, nargs="+", default=FIXED, help="the fixed K")
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS), metavar="NAME")
    parser.add_argument("--table", type=Path, default=None, help="a CSV file with a line for each run")
    args = parse(parser, runs=Path("runs/measured-k-smoke"), seeds=1, fixed=(5, 50), only=list(ENVIRONMENTS)[:1])
    evaluation = "1" if args.smoke else "8"
    flags = [*(SMALL_RUN if args.smoke else []), "--eval-tasks", "64", "--eval-rollouts", evaluation]
    jobs = []
    for seed in range(args.seeds):  # every environment has an answer early
        for name in args.only:
            env, longest = ENVIRONMENTS[name]
            own = ["--env", env, "--env-args", json.dumps({"longest": longest}), "--seed", str(seed), *flags]
            arms = {"elastic": ["--wrapper", "elastic", "--k0", "10"]}
            arms |= {f"K{k}": ["--wrapper", "fixed", "--k0", str(k)] for k in args.fixed}
            jobs += [(args.runs / name / f"{arm}-seed{seed}", [*own, *words]) for arm, words in arms.items()]
    with ThreadPoolExecutor(args.jobs or cpu_cores()) as pool:
        list(pool.map(lambda job: trained(*job), jobs))
    print(command())
    print(f"{cpu_name()}, torch {torch.__version__}; the tiny model, the quick start's settings, {args.seeds} seeds")
    found = {name: measured(args.runs / name, args.fixed, range(args.seeds)) for name in args.only}
    show(found)
    if args.table is not None:
        args.table.parent.mkdir(parents=True, exist_ok=True)
        with args.table.open("w", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(("environment", "arm", "seed", "k", "success"))
            for name, m in found.items():
                for seed in range(args.seeds):
                    lines.writerow((name, "elastic", seed, f"{m.elastic[seed]:.4g}", f"{m.elastic_success[seed]:.6g}"))
                    lines.writerows((name, "fixed", seed, k, f"{v[seed]:.6g}") for k, v in m.success.items())


if __name__ == "__main__":
    run(main)
