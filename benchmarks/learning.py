"""Success and tokens of a suite's arms against fixed K, in all three cabinets.

    python benchmarks/learning.py --table runs/learning.csv
    python benchmarks/learning.py --suite recurring --runs runs/recurring --table runs/recurring.csv
    python benchmarks/learning.py --suite equal --runs runs/equal --table runs/equal.csv
    python benchmarks/learning.py --from benchmarks/results/learning-runs.csv benchmarks/results/recurring-runs.csv

Each cabinet is a sweep of its own in a folder under --runs, with the tiny model. Finished runs are not run again, and a
killed sweep continues. The last tables put the cabinets together: each arm's final success in points from that of the
largest K, and of some pairs, seed by seed, with 95 % intervals whose strata are the cabinets; and its tokens relative
to the largest K's. --table writes a line for each run; --from prints such files' tables, of several also together.

In the suite equal, fixed K have about the tokens of elastic, with fewer updates and a schedule of their own.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from flags import SMALL_RUN, command, interval, new_parser, parse, run
from rich.console import Console

from harness.records.versions import cpu_name
from harness.sweep.analysis import paired_difference, suite_numbers, suite_table
from harness.sweep.runs import read_suites
from harness.sweep.sweep import print_results

CABINETS = ("EH-Cabinet-v0", "EH-CabinetLocked-v0", "EH-CabinetOpenEnded-v0")
FLAGS = ["--device", "cpu", "--keep-checkpoints", "1", "--threshold", "0.8"]
FLAGS += ["--eval-tasks", "128", "--eval-rollouts", "2", "--eval-every", "10"]
RECURRING = ["--env-args", '{"tasks": 96}']
COLUMNS = ["mean_at_k", "tokens_total", "k_mean"]

EQUAL = {"EH-Cabinet-v0": (43, 55), "EH-CabinetLocked-v0": (27, 40), "EH-CabinetOpenEnded-v0": (30, 44)}
"""The suite equal: after so many updates K = 50 and K = 30 have used about as many tokens as elastic after 60."""

HALF = ", x 0.5"  # the end of the name of an arm in which truncated episodes count half

BEST = "best fixed K of the other seeds"
WIDE = f"P90 + 15, α=0.5{HALF}"
PAIRS = (
    *((f"K={k}", "K=50") for k in (15, 30)),
    *(("elastic", other) for other in ("K=30", "K=50", "TTI", BEST)),
    *((f"elastic{HALF}", other) for other in (f"K=30{HALF}", f"K=50{HALF}", "TTI", BEST)),
    *((WIDE, other) for other in (f"K=30{HALF}", f"K=50{HALF}", BEST)),
    *(("task", other) for other in ("K=30", "K=50", "elastic", "Toggle", BEST)),
    *((f"{arm}{HALF}", arm) for arm in ("K=30", "K=50", "elastic")),
)
"""The arms that are compared with each other."""


def equal_arms(cabinet: str) -> dict[str, str]:
    """The names of the arms of the suite equal, by their settings."""
    fixed = {f"K={k}": f"wrapper=fixed,k0={k},updates={n}" for k, n in zip((50, 30), EQUAL[cabinet], strict=True)}
    arms, weights = {"elastic": "wrapper=elastic,k0=10", **fixed}, {"": 1, HALF: 0.5}
    return {f"{of},truncated_weight={w}": name + end for name, of in arms.items() for end, w in weights.items()}


def fixed_arms(numbers: pd.DataFrame) -> list[str]:
    """The arms with a fixed K whose truncated episodes have the full weight, the largest K last."""
    labels = [label for label in numbers.index.unique("arm") if label.startswith("K=") and not label.endswith(HALF)]
    return sorted(labels, key=lambda label: int(label.removeprefix("K=")))


def shares(of: pd.DataFrame) -> pd.Series:
    """Each run's tokens in a cabinet relative to those of the largest K of the same seed."""
    tokens = of["tokens_total"]
    return tokens / tokens[fixed_arms(of)[-1]].reindex(tokens.index, level="seed")


def best_of_other_seeds(numbers: pd.DataFrame) -> pd.Series:
    """The arm `BEST`: in each cabinet and seed the success of the fixed K with the highest mean over its other seeds.

    It could have been chosen beforehand. A K that is chosen on the same seeds looks too good.
    """
    fixed = numbers["mean_at_k"][[label.startswith("K=") for label in numbers.index.get_level_values("arm")]]
    best = {}
    for name, of in fixed.groupby("environment"):
        success = of.loc[name].unstack("arm")
        for seed in success.index if len(success) > 1 else ():
            best[name, BEST, seed] = success.loc[seed, success.drop(seed).mean().idxmax()]
    index = pd.MultiIndex.from_tuples(best, names=numbers.index.names)
    return pd.Series(best.values(), index, dtype=float)


def print_differences(final: pd.Series, title: str, pairs: Mapping, columns: Mapping[str, Sequence[str]]) -> None:
    """Prints differences of arms in final success, in points, seed by seed.

    A row has a name, an arm, and that which it is compared with. A column has the cabinets that it puts together, as
    strata. A cell is empty where one lacks an arm.
    """
    print(f"\n{title}")
    width = max([24, *(len(row) + 2 for row in pairs)])
    print(f"{'arm':{width}}" + "".join(f"{name:>26}" for name in columns))
    for row, (arm, reference) in pairs.items():
        differences = (final.xs(arm, level="arm") - final.xs(reference, level="arm")).dropna()
        cells = []
        for among in columns.values():
            of = differences[differences.index.isin(among, level="environment")]
            whole = set(among) == set(of.index.unique("environment"))
            cells.append(interval(paired_difference(of, 0 * of)) if whole else "—")
        if any(cell != "—" for cell in cells):
            print(f"{row:{width}}" + "".join(f"{cell:>26}" for cell in cells))


def print_together(numbers: pd.DataFrame) -> None:
    """Prints the tables that put the cabinets together."""
    labels, cabinets = numbers.index.unique("arm"), numbers.index.unique("environment")
    columns = {name: [name] for name in cabinets}
    columns |= {"mean of the cabinets": list(cabinets)} if len(cabinets) > 1 else {}
    final, largest = pd.concat([numbers["mean_at_k"], best_of_other_seeds(numbers)]), fixed_arms(numbers)[-1]
    known = final.index.unique("arm")
    pairs = {label: (label, largest) for label in known if label != largest}
    print_differences(final, f"final success in points from that of {largest}", pairs, columns)
    pairs = {f"{arm} from {of}": (arm, of) for arm, of in PAIRS if {arm, of} <= {*known}}
    print_differences(final, "final success in points, pair by pair", pairs, columns)
    print(f"\ntokens, of those of {largest}, and K in the last quarter of the updates")
    print(f"{'arm':24}" + "".join(f"{name:>26}" for name in cabinets))
    used = {name: shares(numbers.xs(name)).groupby(level="arm").mean() for name in cabinets}
    k = numbers["k_mean"].groupby(level=["environment", "arm"]).mean()
    for label in labels:
        with_it = [name if label in used[name] else None for name in cabinets]
        cells = [f"{used[name][label]:.2f}   K {k[name, label]:4.1f}" if name else "—" for name in with_it]
        print(f"{label:24}" + "".join(f"{cell:>26}" for cell in cells))


def main() -> None:
    """Runs what is missing, prints the tables and draws the figure."""
    parser = new_parser(__doc__)
    parser.add_argument("--suite", choices=("learning", "recurring", "comparison", "equal", "tau2"), default="learning")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", default="0", help="the number of runs at once; 0: one per core")
    parser.add_argument("--table", type=Path, default=None, help="a CSV file with a line for each run")
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", help="print such files' tables, run nothing")
    args = parse(parser, runs=Path("runs/learning-smoke"), seeds=1, suite="comparison")
    if args.sources:
        print(command())
        by_file = {path.stem: pd.read_csv(path, index_col=["environment", "arm", "seed"]) for path in args.sources}
    else:
        by_file = {args.suite: run_suite(args)}
    for name, numbers in by_file.items():
        print(f"\n{name}")
        print_together(numbers)
    if len(by_file) > 1:
        print("\ntogether, the arms of all files")
        seeds = [of.rename(lambda seed, name=name: f"{name} {seed}", level="seed") for name, of in by_file.items()]
        arms = set.intersection(*(set(of.index.unique("arm")) for of in seeds))
        print_together(pd.concat(of[of.index.isin(arms, level="arm")] for of in seeds))
    if args.table is not None:
        numbers.to_csv(args.table, float_format="%.6g")


def run_suite(args: Namespace) -> pd.DataFrame:
    """Runs what is missing of a suite, prints each cabinet's own tables, and returns the numbers of all runs."""
    found, equal = {}, args.suite == "equal"
    cabinets = ("EH-Tau2-v0",) if args.suite == "tau2" else CABINETS[:1] if args.smoke else CABINETS
    flags = {"tau2": ["--recipe", "tau2"], "recurring": [*FLAGS, *RECURRING]}.get(args.suite, FLAGS)
    small = [*SMALL_RUN, "--eval-tasks", "1", "--eval-rollouts", "1"] if args.smoke else []
    for name in cabinets:
        arms = ["--suite", args.suite]
        if equal:
            arms = [f"--arm={text}" for text in equal_arms(name)] + ["--warm-start.max-optimal-steps", "9"]
        words = [*arms, "--env", name, "--seeds", str(args.seeds), "--jobs", args.jobs, *flags, *small]
        sweep = [sys.executable, "-m", "harness.sweep", *words, "--out", str(args.runs / name)]
        subprocess.run(sweep, check=True, stdout=sys.stderr)  # its progress, and what has failed
    print(command())
    print(f"{cpu_name()}, torch {torch.__version__}")
    for name in cabinets:
        print(f"\n{name}")
        suites = [one for one in read_suites([args.runs / name]) if one.name == ("arms" if equal else args.suite)]
        for suite in suites:
            print_results(suite_table(suite), Console(width=160, color_system=None))
            found[name] = suite_numbers(suite).rename(equal_arms(name) if equal else {}, level="arm")
    return pd.concat(found, names=["environment", "arm", "seed"])[COLUMNS]


if __name__ == "__main__":
    run(main)
