"""Does the K of one elastic run tell which fixed K a sweep would have found? One line per environment, and rank correlations.

    python benchmarks/measured_k.py --seeds 3 --table runs/measured-k.csv
    python benchmarks/measured_k.py --smoke

The environments are the cabinets with chains of several greatest lengths, so the K that an agent needs differs by a factor of
five. In each, the tiny model is trained with fixed K and with the elastic horizon from K0 = 10, otherwise with the quick start's
settings. All are evaluated at K = 50. A sweep's answer has two forms: the K with the most success, and the least K of the band
that cannot be told from it (`harness.experiments.analysis.plateau`). What is finished, or stands in the table, is not run again;
a killed run is resumed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import torch
from flags import SMALL_RUN, command, new_parser, parse, run, trained

from eh_gym.errors import ConfigError
from envs.cabinet.tasks import success_ceiling
from harness.experiments.analysis import Plateau, plateau, run_numbers
from harness.experiments.jobs import cpu_cores
from harness.experiments.runs import read_run
from harness.run.files import whole_file
from harness.run.versions import cpu_name

FIXED = (5, 10, 15, 20, 25, 30, 40, 50)
ENVIRONMENTS = {
    f"{env} {longest}": (f"EH-{env}-v0", longest)
    for env, lengths in {"Cabinet": (2, 4, 6, 8, 11), "CabinetOpenEnded": (3, 5, 8), "CabinetLocked": (5, 10)}.items()
    for longest in lengths
}
"""Each environment's name in the table: the cabinet, and the most drawers of a chain."""

KEYS = ["environment", "arm", "seed"]  # the arm is elastic, K5, ...


def k_and_success(folder: Path, words: Sequence[str]) -> tuple[float, float]:
    """Trains one run, unless it has ended; returns its mean K over the last quarter of the updates, and its held-out success."""
    numbers = run_numbers(read_run(trained(folder, words)), threshold=0.5, held_out=False)
    return numbers["k_mean"], numbers["mean_at_k"]


def read_table(path: Path | None) -> pd.DataFrame:
    """Reads the K and the success of the runs of earlier calls; none if there is no file."""
    if path is None or not path.exists():
        return pd.DataFrame({"k": [], "success": []}, pd.MultiIndex.from_arrays([[], [], []], names=KEYS))
    rows = pd.read_csv(path)
    rows["arm"] = rows["arm"].where(rows["arm"] != "fixed", "K" + rows["k"].astype(int).astype(str))
    return rows.set_index(KEYS)


def write_table(path: Path, runs: pd.DataFrame) -> None:
    """Writes a line for each run, those of an environment and a seed together."""
    rows = runs.reset_index()
    rows["order"] = rows["environment"].map(list(ENVIRONMENTS).index)
    rows["arm"] = rows["arm"].where(rows["arm"] == "elastic", "fixed")
    rows = rows.sort_values(["order", "seed", "arm", "k"])[[*KEYS, "k", "success"]]
    rows["k"] = rows["k"].map("{:.4g}".format)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        rows.to_csv(part, index=False, float_format="%.6g")


def rank_correlation(x: pd.Series, y: pd.Series) -> tuple[float, float, float]:
    """Spearman's coefficient, and its 95 % interval by Fisher's transformation with Fieller's variance, 1.06 / (n - 3)."""
    r = float(x.rank().corr(y.rank()))
    if len(x) < 4 or abs(r) > 1 - 1e-12:
        return r, math.nan, math.nan
    half = 1.96 * math.sqrt(1.06 / (len(x) - 3))
    return r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def needed(name: str) -> int:
    """The K in which the expert solves 90 % of an environment's tasks."""
    env, longest = ENVIRONMENTS[name]
    return next(k for k in range(1, 51) if success_ceiling(k, locked="Locked" in env, longest=longest) >= 0.9)


def band_of(success: pd.DataFrame) -> Plateau:
    """The band of fixed K, of the success by K and seed."""
    found = plateau({int(k): list(row) for k, row in success.iterrows()})
    assert found is not None
    return found


def show(runs: pd.DataFrame, names: Sequence[str], horizons: Sequence[int], seeds: Sequence[int]) -> None:
    """Prints the table, what a constant K would do in place of elastic, and the correlations."""
    table = runs.unstack("seed")[[(what, seed) for what in ("k", "success") for seed in seeds]]
    fixed = {name: table["success"].loc[[(name, f"K{k}") for k in horizons]].set_axis(horizons) for name in names}
    means = pd.DataFrame({name: of.mean(axis=1) for name, of in fixed.items()})
    bands = {name: band_of(of) for name, of in fixed.items()}
    best = pd.Series({name: means.loc[band.best, name] for name, band in bands.items()})
    elastic = table.xs("elastic", level="arm").loc[list(names)]
    print(
        f"\n{'':22} {'needed':>7} {'elastic K':>10} {'best K':>7} {'band':>8} {'success':>8} {'best':>6} {'longest':>8}"
    )
    for name, band in bands.items():
        ks = "/".join(f"{k:.0f}" for k in elastic["k"].loc[name])
        print(
            f"{name:22} {needed(name):7} {ks:>10} {band.best:7} {f'{band.low}-{band.high}':>8} "
            f"{100 * elastic['success'].loc[name].mean():8.1f} {100 * best[name]:6.1f} "
            f"{100 * means.loc[max(horizons), name]:8.1f}"
        )
    print(
        "needed: the K in which the expert solves 90 % of the tasks. success: of the elastic run, of the best fixed K and of the"
    )
    print("longest, in %, all at K = 50")
    print(f"\n{'':22} {'in the band':>12} {'points behind the best K, mean over environments':>50}")
    inside = pd.DataFrame({name: elastic["k"].loc[name].between(band.low, band.high) for name, band in bands.items()})
    chosen = {
        f"K = {k} everywhere": (sum(band.low <= k <= band.high for band in bands.values()), means.loc[k])
        for k in horizons
    }
    chosen |= {f"elastic, seed {seed}": (inside.loc[seed].sum(), elastic["success", seed]) for seed in seeds}
    chosen["elastic, all seeds"] = (inside.all().sum(), elastic["success"].mean(axis=1))
    for what, (count, success) in chosen.items():
        print(f"{what:22} {f'{count} of {len(names)}':>12} {100 * (best - success).mean():>50.1f}")
    expert = pd.Series({name: needed(name) for name in names})
    answers = {"the least K of the band": pd.Series({name: band.low for name, band in bands.items()})}
    answers |= {"the best K": pd.Series({name: band.best for name, band in bands.items()})}
    answers |= {"the K that the expert needs": expert}
    measures = {f"the elastic K of seed {seed}": elastic["k", seed] for seed in seeds}
    print(f"\nSpearman's rank correlation over {len(names)} environments, with its 95 % interval")
    for measure, ks in {**measures, "the K that the expert needs": expert}.items():
        for what, values in answers.items():
            if measure != what and values.nunique() > 1 and ks.nunique() > 1:
                print("{} and {}: {:+.2f} ({:+.2f} to {:+.2f})".format(measure, what, *rank_correlation(ks, values)))


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
    arms = {"elastic": ["--wrapper", "elastic", "--k0", "10"]}
    arms |= {f"K{k}": ["--wrapper", "fixed", "--k0", str(k)] for k in args.fixed}
    runs, jobs = read_table(args.table), {}
    for seed in range(args.seeds):  # every environment has an answer early
        for name in args.only:
            env, longest = ENVIRONMENTS[name]
            own = ["--env", env, "--env-args", json.dumps({"longest": longest}), "--seed", str(seed), *flags]
            for arm, words in arms.items():
                if (name, arm, seed) not in runs.index:
                    jobs[name, arm, seed] = (args.runs / name / f"{arm}-seed{seed}", [*own, *words])
    with ThreadPoolExecutor(args.jobs or cpu_cores()) as pool:
        for key, found in zip(jobs, pool.map(lambda job: k_and_success(*job), jobs.values()), strict=True):
            runs.loc[key, :] = found
            if args.table is not None:
                write_table(args.table, runs)
    print(command())
    print(f"{cpu_name()}, torch {torch.__version__}; the tiny model, the quick start's settings, {args.seeds} seeds")
    show(runs, args.only, args.fixed, range(args.seeds))


if __name__ == "__main__":
    run(main)
