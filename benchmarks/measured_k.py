"""Does the K of one elastic run tell which fixed K a sweep would have found? One line per environment, and rank correlations.

    python benchmarks/measured_k.py --seeds 3 --table runs/measured-k.csv
    python benchmarks/measured_k.py --smoke

The environments are the cabinets with chains of several greatest lengths, so the K that an agent needs differs by a factor of
five. In each, the tiny model is trained with fixed K and with the elastic horizon from K0 = 10, otherwise with the quick start's
settings. All are evaluated at K = 50. A sweep's answer has two forms: the K with the most success, and the least K of the band
that cannot be told from it (`harness.experiments.plateau`). What is finished, or stands in the table, is not run again; a killed
run is resumed.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from flags import SMALL_RUN, command, new_parser, parse, run, trained

from eh_gym.errors import ConfigError
from envs.cabinet.tasks import success_ceiling
from harness.experiments.jobs import cpu_cores
from harness.experiments.plateau import Plateau, plateau
from harness.run.files import whole_file
from harness.run.metrics import read_metrics
from harness.run.versions import cpu_name

FIXED = (5, 10, 15, 20, 25, 30, 40, 50)
ENVIRONMENTS = {
    f"{env} {longest}": (f"EH-{env}-v0", longest)
    for env, lengths in {"Cabinet": (2, 4, 6, 8, 11), "CabinetOpenEnded": (3, 5, 8), "CabinetLocked": (5, 10)}.items()
    for longest in lengths
}
"""Each environment's name in the table: the cabinet, and the most drawers of a chain."""


Runs = dict[tuple[str, str, int], tuple[float, float]]
"""By the environment's name, the arm (elastic, K5, ...) and the seed: K, for elastic the one it settled at, and success."""


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


def k_and_success(folder: Path, words: Sequence[str]) -> tuple[float, float]:
    """Trains one run, unless it has ended.

    Returns:
        The mean K over the last quarter of its updates, and its success on held-out tasks after training, at K = 50.
    """
    trained(folder, words)
    series = [float(row.get("horizon/k_real", row["horizon/k"])) for row in read_metrics(folder / "metrics.jsonl")]
    evaluation = json.loads((folder / "evaluation.json").read_text())
    return statistics.fmean(series[math.floor(0.75 * len(series)) :]), evaluation["after"]["sampled"]["mean_at_k"]


def read_table(path: Path) -> Runs:
    """Reads the runs of earlier calls; none if there is no file."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {
            (row["environment"], f"K{row['k']}" if row["arm"] == "fixed" else row["arm"], int(row["seed"])): (
                float(row["k"]),
                float(row["success"]),
            )
            for row in csv.DictReader(file)
        }


def write_table(path: Path, runs: Runs) -> None:
    """Writes a line for each run, those of an environment and a seed together."""
    order = {name: i for i, name in enumerate(ENVIRONMENTS)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part, part.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("environment", "arm", "seed", "k", "success"))
        for name, arm, seed in sorted(runs, key=lambda run: (order[run[0]], run[2], run[1] != "elastic", runs[run][0])):
            k, success = runs[name, arm, seed]
            lines.writerow((name, "elastic" if arm == "elastic" else "fixed", seed, f"{k:.4g}", f"{success:.6g}"))


def measured(runs: Runs, name: str, horizons: Sequence[int], seeds: Sequence[int]) -> Measured:
    """Puts the runs of one environment together."""
    by_k = {k: [runs[name, f"K{k}", seed][1] for seed in seeds] for k in horizons}
    band = plateau(by_k)
    assert band is not None
    elastic = [runs[name, "elastic", seed] for seed in seeds]
    return Measured([k for k, _ in elastic], [success for _, success in elastic], by_k, band)


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


def needed(name: str) -> int:
    """The K in which the expert solves 90 % of an environment's tasks."""
    env, longest = ENVIRONMENTS[name]
    return next(k for k in range(1, 51) if success_ceiling(k, locked="Locked" in env, longest=longest) >= 0.9)


def show(found: dict[str, Measured]) -> None:
    """Prints the table, what a constant K would do in place of elastic, and the correlations."""
    print(
        f"\n{'':22} {'needed':>7} {'elastic K':>10} {'best K':>7} {'band':>8} {'success':>8} {'best':>6} {'longest':>8}"
    )
    for name, m in found.items():
        seeds = "/".join(f"{k:.0f}" for k in m.elastic)
        best = statistics.fmean(m.success[m.band.best])
        print(
            f"{name:22} {needed(name):7} {seeds:>10} {m.band.best:7} {f'{m.band.low}-{m.band.high}':>8} "
            f"{100 * statistics.fmean(m.elastic_success):8.1f} {100 * best:6.1f} "
            f"{100 * statistics.fmean(m.success[max(m.success)]):8.1f}"
        )
    print(
        "needed: the K in which the expert solves 90 % of the tasks. success: of the elastic run, of the best fixed K and of the"
    )
    print("longest, in %, all at K = 50")
    answers = list(found.values())
    print(f"\n{'':22} {'in the band':>12} {'points behind the best K, mean over environments':>50}")
    chosen: dict[str, list[tuple[bool, list[float]]]] = {
        f"K = {k} everywhere": [(m.band.low <= k <= m.band.high, m.success[k]) for m in answers]
        for k in answers[0].success
    }
    for seed in range(len(answers[0].elastic)):
        chosen[f"elastic, seed {seed}"] = [
            (m.band.low <= m.elastic[seed] <= m.band.high, [m.elastic_success[seed]]) for m in answers
        ]
    chosen["elastic, all seeds"] = [
        (all(m.band.low <= k <= m.band.high for k in m.elastic), m.elastic_success) for m in answers
    ]
    for what, by_environment in chosen.items():
        behind = [
            100 * (statistics.fmean(m.success[m.band.best]) - statistics.fmean(success))
            for m, (_, success) in zip(answers, by_environment, strict=True)
        ]
        inside = f"{sum(found for found, _ in by_environment)} of {len(answers)}"
        print(f"{what:22} {inside:>12} {statistics.fmean(behind):>50.1f}")
    sweeps = {
        "the least K of the band": [float(m.band.low) for m in answers],
        "the best K": [float(m.band.best) for m in answers],
    }
    print(f"\nSpearman's rank correlation over {len(found)} environments, with its 95 % interval")
    expert = [float(needed(name)) for name in found]
    measures = {
        f"the elastic K of seed {seed}": [m.elastic[seed] for m in answers] for seed in range(len(answers[0].elastic))
    }
    for measure, ks in {**measures, "the K that the expert needs": expert}.items():
        for what, values in (sweeps | ({"the K that the expert needs": expert} if ks is not expert else {})).items():
            if len(set(values)) > 1 and len(set(ks)) > 1:
                r, low, high = rank_correlation(ks, values)
                print(f"{measure} and {what}: {r:+.2f} ({low:+.2f} to {high:+.2f})")


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/measured-k"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=0, help="the number of runs at once; 0: one per core")
    parser.add_argument("--fixed", type=int, nargs="+", default=FIXED, help="the fixed K")
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS), metavar="NAME")
    parser.add_argument("--table", type=Path, default=None, help="a CSV file of runs; those are not run again")
    args = parse(parser, runs=Path("runs/measured-k-smoke"), seeds=1, fixed=(5, 50), only=list(ENVIRONMENTS)[:1])
    if args.smoke and args.table is not None:
        raise ConfigError("--table would keep the figures of --smoke, which mean nothing, as results; leave one out")
    tasks, rollouts = ("2", "1") if args.smoke else ("64", "8")
    flags = [*(SMALL_RUN if args.smoke else []), "--eval-tasks", tasks, "--eval-rollouts", rollouts]
    runs = {} if args.table is None else read_table(args.table)
    jobs = {}
    for seed in range(args.seeds):  # every environment has an answer early
        for name in args.only:
            env, longest = ENVIRONMENTS[name]
            own = ["--env", env, "--env-args", json.dumps({"longest": longest}), "--seed", str(seed), *flags]
            arms = {"elastic": ["--wrapper", "elastic", "--k0", "10"]}
            arms |= {f"K{k}": ["--wrapper", "fixed", "--k0", str(k)] for k in args.fixed}
            for arm, words in arms.items():
                if (name, arm, seed) not in runs:
                    jobs[name, arm, seed] = (args.runs / name / f"{arm}-seed{seed}", [*own, *words])
    with ThreadPoolExecutor(args.jobs or cpu_cores()) as pool:
        for run, found in zip(jobs, pool.map(lambda job: k_and_success(*job), jobs.values()), strict=True):
            runs[run] = found
            if args.table is not None:
                write_table(args.table, runs)
    print(command())
    print(f"{cpu_name()}, torch {torch.__version__}; the tiny model, the quick start's settings, {args.seeds} seeds")
    show({name: measured(runs, name, args.fixed, range(args.seeds)) for name in args.only})


if __name__ == "__main__":
    run(main)
