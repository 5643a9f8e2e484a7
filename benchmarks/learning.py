"""Success and tokens of a suite's arms against the best fixed K, in all three cabinets; and a figure of them.

    python benchmarks/learning.py --seeds 5 --figure docs/images/learning.png
    python benchmarks/learning.py --from benchmarks/results/learning-runs.csv
    python benchmarks/learning.py --suite recurring --runs runs/recurring --table runs/recurring.csv

Each cabinet is a sweep of its own in a folder under --runs, with the tiny model. Finished runs are not run again, and a
killed sweep continues. The last tables put the cabinets together: each arm's final success in points from that of the
best fixed K of that cabinet, from that of elastic, and for some pairs, seed by seed, with a 95 % interval (Student's
t), and its tokens relative to the largest K's. --table writes a line for each run; --from prints the tables of one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from flags import SMALL_RUN, command, interval, new_parser, parse, run, save
from matplotlib.figure import Figure
from rich.console import Console

from harness.records.versions import cpu_name
from harness.sweep.analysis import paired_difference, suite_numbers
from harness.sweep.runs import read_suites
from harness.sweep.sweep import print_results, read_tables

CABINETS = ("EH-Cabinet-v0", "EH-CabinetLocked-v0", "EH-CabinetOpenEnded-v0")
FLAGS = ["--device", "cpu", "--keep-checkpoints", "1", "--threshold", "0.8"]
FLAGS += ["--eval-tasks", "128", "--eval-rollouts", "2", "--eval-every", "10"]
RECURRING = ["--env-args", '{"tasks": 96}']
COLUMNS = ["mean_at_k", "tokens_total", "k_mean"]

HALF = ", x 0.5"  # the end of the name of an arm in which truncated episodes count half

WIDE = f"P90 + 15, α=0.5{HALF}"
PAIRS = (
    *(("elastic", other) for other in ("K=30", "K=50", "TTI")),
    *((f"elastic{HALF}", other) for other in (f"K=30{HALF}", f"K=50{HALF}", "TTI")),
    *((WIDE, other) for other in (f"K=30{HALF}", f"K=50{HALF}")),
    ("K=30", "K=50"),
    *(("task", other) for other in ("K=30", "K=50", "elastic", "Toggle")),
)
"""The arms that are compared with each other."""
SHOWN = ("elastic", f"elastic{HALF}", f"{WIDE}", "TTI")


def fixed_arms(numbers: pd.DataFrame) -> list[str]:
    """The arms with a fixed K whose truncated episodes have the full weight, the largest K last."""
    labels = [label for label in numbers.index.unique("arm") if label.startswith("K=") and not label.endswith(HALF)]
    return sorted(labels, key=lambda label: int(label.removeprefix("K=")))


def shares(of: pd.DataFrame) -> pd.Series:
    """Each run's tokens in a cabinet relative to those of the largest K of the same seed."""
    tokens = of["tokens_total"]
    return tokens / tokens[fixed_arms(of)[-1]].reindex(tokens.index, level="seed")


def print_differences(numbers: pd.DataFrame, title: str, rows: Sequence[tuple[str, str, Mapping[str, str]]]) -> None:
    """Prints differences of final success in points, seed by seed: for each cabinet, and for the mean of the cabinets.

    Of each row are given its name, the arm, and the arm that it is compared with by cabinet.
    """
    if not rows:
        return
    width = max(24, *(len(row) + 2 for row, _, _ in rows))
    cabinets = list(numbers.index.unique("environment"))
    print(f"\n{title}")
    print(f"{'arm':{width}}" + "".join(f"{name:>28}" for name in (*cabinets, "mean of the cabinets")))
    for row, label, others in rows:
        cells, by_cabinet = [], []
        for name in cabinets:
            final = numbers["mean_at_k"].xs(name)
            own, other = (final.get(arm, pd.Series(dtype=float)) for arm in (label, others[name]))
            cells.append("best" if label == others[name] else interval(paired_difference(own, other)))
            by_cabinet.append(own - other)
        together = pd.concat(by_cabinet, axis=1).dropna().mean(axis=1)
        cells.append(interval(paired_difference(together, 0 * together)))
        print(f"{row:{width}}" + "".join(f"{cell:>28}" for cell in cells))


def print_together(numbers: pd.DataFrame) -> None:
    """Prints the tables that put the cabinets together."""
    labels, cabinets = numbers.index.unique("arm"), numbers.index.unique("environment")
    means = numbers["mean_at_k"].groupby(level=["environment", "arm"]).mean()
    fixed = [label for label in labels if label.startswith("K=")]
    best = {name: means[name].reindex(fixed).idxmax() for name in cabinets}
    named = ", ".join(f"{label} in {name}" for name, label in best.items())
    title = f"final success in points from that of the best fixed K ({named})"
    print_differences(numbers, title, [(label, label, best) for label in labels])
    title = "final success in points with truncated episodes at half weight, from that of the same arm at weight 1"
    halves = [f"{label}{HALF}" for label in labels if f"{label}{HALF}" in labels]
    rows = [(label, label, dict.fromkeys(cabinets, label.removesuffix(HALF))) for label in halves]
    print_differences(numbers, title, rows)
    rows = [
        (label, label, dict.fromkeys(cabinets, "elastic"))
        for label in labels
        if "elastic" in labels and label != "elastic"
    ]
    print_differences(numbers, "final success in points from that of elastic, on the seeds that both have", rows)
    rows = [(f"{arm} from {of}", arm, dict.fromkeys(cabinets, of)) for arm, of in PAIRS if {arm, of} <= set(labels)]
    print_differences(numbers, "final success in points, pair by pair", rows)
    print("\ntokens, of those of the largest K, and K in the last quarter of the updates")
    print(f"{'arm':24}" + "".join(f"{name:>28}" for name in cabinets))
    used = {name: shares(numbers.xs(name)).groupby(level="arm").mean() for name in cabinets}
    k = numbers["k_mean"].groupby(level=["environment", "arm"]).mean()
    for label in labels:
        with_it = [name if label in used[name] else None for name in cabinets]
        cells = [f"{used[name][label]:.2f}   K {k[name, label]:4.1f}" if name else "—" for name in with_it]
        print(f"{label:24}" + "".join(f"{cell:>28}" for cell in cells))


def draw(numbers: pd.DataFrame, path: Path) -> None:
    """Draws each arm's final success over its tokens, with its standard error, in a panel for each cabinet."""
    cabinets = list(numbers.index.unique("environment"))
    figure = Figure(figsize=(9.6, 3.4), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(cabinets), sharey=True, squeeze=False)[0]
    colours = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito's
    for axes, name in zip(panels, cabinets, strict=True):
        of, fixed = numbers.xs(name), fixed_arms(numbers.xs(name))
        success = of["mean_at_k"].groupby(level="arm").agg(["mean", "sem"]).fillna(0)
        x, y, error = 100 * shares(of).groupby(level="arm").mean(), 100 * success["mean"], 100 * success["sem"]
        for label in fixed:
            axes.errorbar(x[label], y[label], yerr=error[label], color="#666666", marker=".", capsize=2)
            axes.annotate(label, (x[label], y[label]), xytext=(4, -11), textcoords="offset points")
        for i, label in enumerate(label for label in SHOWN if label in x):
            look = {"color": colours[i % 6], "marker": "os^Dv*"[i % 6], "linestyle": ""}
            axes.errorbar(x[label], y[label], yerr=error[label], capsize=2, label=label, **look)
        axes.plot(x[fixed], y[fixed], color="#BBBBBB", linewidth=1, zorder=0)
        axes.set_xlim(40, 110)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(f"training tokens, % of {fixed[-1]}'s")
    panels[0].set_ylabel("held-out success, %")
    panels[-1].legend(frameon=False, fontsize=8, loc="lower left")
    save(figure, path)


def main() -> None:
    """Runs what is missing, prints the tables and draws the figure."""
    parser = new_parser(__doc__)
    parser.add_argument("--suite", choices=("learning", "recurring", "comparison"), default="learning")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", default="0", help="the number of runs at once; 0: one per core")
    parser.add_argument("--figure", type=Path, default=None)
    parser.add_argument("--table", type=Path, default=None, help="a CSV file with a line for each run")
    parser.add_argument("--from", dest="source", type=Path, help="print the tables of such a file, run nothing")
    args = parse(parser, runs=Path("runs/learning-smoke"), seeds=1, suite="comparison")
    cabinets = CABINETS[:1] if args.smoke else CABINETS
    if args.source is None:
        flags = [*FLAGS, *(RECURRING if args.suite == "recurring" else [])]
        flags += [*SMALL_RUN, "--eval-tasks", "1", "--eval-rollouts", "1"] if args.smoke else []
        for name in cabinets:
            words = ["--suite", args.suite, "--env", name, "--seeds", str(args.seeds), "--jobs", args.jobs, *flags]
            sweep = [sys.executable, "-m", "harness.sweep", *words, "--out", str(args.runs / name)]
            subprocess.run(sweep, check=True, stdout=sys.stderr)  # its progress, and what has failed
    print(command())
    if args.source is not None:
        numbers = pd.read_csv(args.source, index_col=["environment", "arm", "seed"])
    else:
        print(f"{cpu_name()}, torch {torch.__version__}; 60 updates of 64 episodes, 256 held-out episodes")
        found = {}
        for name in cabinets:
            print(f"\n{name}")
            for table in read_tables(args.runs / name, [args.suite]):
                print_results(table, Console(width=160, color_system=None))
            [suite] = [one for one in read_suites([args.runs / name]) if one.name == args.suite]
            found[name] = suite_numbers(suite)
        numbers = pd.concat(found, names=["environment", "arm", "seed"])[COLUMNS]
    print_together(numbers)
    if args.figure is not None:
        draw(numbers, args.figure)
    if args.table is not None:
        numbers.to_csv(args.table, float_format="%.6g")


if __name__ == "__main__":
    run(main)
