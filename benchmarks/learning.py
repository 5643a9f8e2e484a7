"""Success and tokens of a suite's arms against the best fixed K, in all three cabinets; and a figure of them.

    python benchmarks/learning.py --seeds 5 --figure docs/images/learning.png
    python benchmarks/learning.py --from benchmarks/results/learning-runs.csv
    python benchmarks/learning.py --suite recurring --runs runs/recurring --table runs/recurring.csv

Each cabinet is a sweep of its own in a folder under --runs, with the tiny model. Finished runs are not run again, and a killed
sweep continues. The last tables put the cabinets together: each arm's final success in points from that of the best fixed K of
that cabinet, from that of elastic, and for some pairs, seed by seed, with a 95 % interval (Student's t), and its tokens relative
to the largest K's. --table writes a line for each run, and --from prints these tables from such a file.
"""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from flags import SMALL_RUN, command, new_parser, parse, run
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from harness.experiments.analysis import paired_difference, run_numbers, spread
from harness.experiments.report.runs import read_suites
from harness.experiments.suite_table import baseline_of
from harness.run.versions import cpu_name
from harness.sweep import print_table, read_tables

CABINETS = ("EH-Cabinet-v0", "EH-CabinetLocked-v0", "EH-CabinetOpenEnded-v0")
FLAGS = ["--quick", "--eval-tasks", "128", "--eval-rollouts", "2", "--eval-every", "10"]
COLUMNS = ("mean_at_k", "tokens_total", "k_mean")

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

Numbers = Mapping[str, Mapping[int, Mapping[str, float | None]]]
"""For each arm and seed the numbers of a run."""
Sweep = tuple[Numbers, list[str], str]
"""The numbers of a cabinet's runs, the arms with a fixed K, and the one with the largest K."""


def numbers_of(folder: Path, suite: str) -> Sweep:
    """Returns the numbers of a sweep's finished runs, its fixed arms, and the one with the largest K."""
    [found] = [one for one in read_suites([folder]) if one.name == suite]
    arms = [arm.ended for arm in found.arms if arm.ended.runs]
    fixed = [arm.label for arm in arms if arm.settings.get("wrapper") == "fixed"]
    baseline = baseline_of(arms)
    assert baseline is not None, "the suite has a fixed K"
    numbers = {
        arm.label: {run.seed: run_numbers(run, threshold=0.8, held_out=True) for run in arm.runs} for arm in arms
    }
    return numbers, fixed, baseline.label


def final(of: Mapping[int, Mapping[str, float | None]]) -> dict[int, float | None]:
    """The final success by seed."""
    return {seed: values["mean_at_k"] for seed, values in of.items()}


def mean(values: Sequence[float | None]) -> float:
    """The mean of what is known."""
    found = spread(values)
    assert found is not None
    return found.mean


def best_of(numbers: Numbers, fixed: Sequence[str]) -> str:
    """The fixed arm with the highest mean success."""
    return max(fixed, key=lambda label: mean(list(final(numbers[label]).values())))


def shares(numbers: Numbers, baseline: str) -> dict[str, float]:
    """Each arm's tokens relative to the baseline's of the same seed."""
    return {
        label: statistics.fmean(
            tokens / other
            for seed, values in by_seed.items()
            if (tokens := values["tokens_total"]) and (other := numbers[baseline].get(seed, {}).get("tokens_total"))
        )
        for label, by_seed in numbers.items()
    }


def interval(found: tuple[float, float, float] | None) -> str:
    """A difference in points with its interval.

    >>> interval((0.02, -0.01, 0.05)).strip()
    '+2.0 (-1.0 to +5.0)'
    """
    return "—" if found is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * value for value in found))


def print_differences(
    sweeps: Mapping[str, Sweep], title: str, rows: Sequence[tuple[str, str, Mapping[str, str]]]
) -> None:
    """Prints differences of final success in points, seed by seed: for each cabinet, and for the mean of the cabinets.

    Args:
        sweeps: The cabinets.
        title: What is compared.
        rows: For each row its name, the arm, and the arm that it is compared with by cabinet.
    """
    width = max(24, *(len(row) + 2 for row, _, _ in rows))
    print(f"\n{title}")
    print(f"{'arm':{width}}" + "".join(f"{name:>28}" for name in (*sweeps, "mean of the cabinets")))
    for row, label, others in rows:
        cells, by_cabinet = [], []
        for name, (numbers, _, _) in sweeps.items():
            own, other = final(numbers.get(label, {})), final(numbers.get(others[name], {}))
            cells.append("best" if label == others[name] else interval(paired_difference(own, other)))
            by_cabinet.append({s: a - b for s, a in own.items() if a is not None and (b := other.get(s)) is not None})
        seeds = set.intersection(*(set(of) for of in by_cabinet))
        together = {s: statistics.fmean(of[s] for of in by_cabinet) for s in sorted(seeds)}
        cells.append(interval(paired_difference(together, dict.fromkeys(together, 0.0))))
        print(f"{row:{width}}" + "".join(f"{cell:>28}" for cell in cells))


def print_together(sweeps: Mapping[str, Sweep]) -> None:
    """Prints the tables that put the cabinets together."""
    best = {name: best_of(numbers, fixed) for name, (numbers, fixed, _) in sweeps.items()}
    labels = list(dict.fromkeys(label for numbers, _, _ in sweeps.values() for label in numbers))
    named = ", ".join(f"{label} in {name}" for name, label in best.items())
    title = f"final success in points from that of the best fixed K ({named})"
    print_differences(sweeps, title, [(label, label, best) for label in labels])
    halves = [
        (f"{label}{HALF}", f"{label}{HALF}", dict.fromkeys(sweeps, label))
        for label in labels
        if f"{label}{HALF}" in labels
    ]
    if halves:
        title = "final success in points with truncated episodes at half weight, from that of the same arm at weight 1"
        print_differences(sweeps, title, halves)
    if "elastic" in labels:
        others = [(label, label, dict.fromkeys(sweeps, "elastic")) for label in labels if label != "elastic"]
        print_differences(sweeps, "final success in points from that of elastic, on the seeds that both have", others)
    pairs = [
        (f"{arm} from {other}", arm, dict.fromkeys(sweeps, other))
        for arm, other in PAIRS
        if {arm, other} <= set(labels)
    ]
    if pairs:
        print_differences(sweeps, "final success in points, pair by pair", pairs)
    print("\ntokens, of those of the largest K, and K in the last quarter of the updates")
    print(f"{'arm':24}" + "".join(f"{name:>28}" for name in sweeps))
    of_all = {name: shares(numbers, baseline) for name, (numbers, _, baseline) in sweeps.items()}
    for label in labels:
        cells = [
            f"{used[label]:.2f}   K {mean([v['k_mean'] for v in sweeps[name][0][label].values()]):4.1f}"
            if label in used
            else "—"
            for name, used in of_all.items()
        ]
        print(f"{label:24}" + "".join(f"{cell:>28}" for cell in cells))


def write_runs(sweeps: Mapping[str, Sweep], path: Path) -> None:
    """Writes a line for each run."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("environment", "arm", "seed", *COLUMNS))
        for name, (numbers, _, _) in sweeps.items():
            for label, by_seed in numbers.items():
                for seed, values in sorted(by_seed.items()):
                    lines.writerow(
                        (name, label, seed, *("" if (v := values[c]) is None else f"{v:.6g}" for c in COLUMNS))
                    )


def read_runs(path: Path) -> dict[str, Sweep]:
    """Reads what `write_runs` has written."""
    numbers: dict[str, dict[str, dict[int, dict[str, float | None]]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            of_arm = numbers.setdefault(row["environment"], {}).setdefault(row["arm"], {})
            of_arm[int(row["seed"])] = {column: float(row[column]) if row[column] else None for column in COLUMNS}
    fixed = {name: [label for label in arms if label.startswith("K=")] for name, arms in numbers.items()}
    plain = {name: [label for label in labels if not label.endswith(HALF)] for name, labels in fixed.items()}
    return {
        name: (arms, fixed[name], max(plain[name], key=lambda label: int(label.removeprefix("K="))))
        for name, arms in numbers.items()
    }


def draw(sweeps: Mapping[str, Sweep], shown: Sequence[str], path: Path) -> None:
    """Draws each arm's final success over its tokens, with its standard error, in a panel for each cabinet."""
    figure = Figure(figsize=(9.6, 3.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(sweeps), sharey=True, squeeze=False)[0]
    colours = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito's
    for axes, (name, (numbers, every, baseline)) in zip(panels, sweeps.items(), strict=True):
        used, fixed = shares(numbers, baseline), [label for label in every if not label.endswith(HALF)]
        others = [label for label in shown if label in numbers and label not in fixed]
        for label in (*fixed, *others):
            found = spread(list(final(numbers[label]).values()))
            assert found is not None
            error = (found.std or 0.0) / found.n**0.5
            own = label not in fixed
            axes.errorbar(
                100 * used[label],
                100 * found.mean,
                yerr=100 * error,
                color=colours[others.index(label) % len(colours)] if own else "#666666",
                marker="os^Dv*"[others.index(label) % 6] if own else ".",
                capsize=2,
                linestyle="",
                label=label if own else None,
            )
            if not own:
                axes.annotate(label, (100 * used[label], 100 * found.mean), xytext=(4, -11), textcoords="offset points")
        line = [(100 * used[label], 100 * mean(list(final(numbers[label]).values()))) for label in fixed]
        axes.plot(*zip(*line, strict=True), color="#BBBBBB", linewidth=1, zorder=0)
        axes.set_xlim(40, 110)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(f"training tokens, % of {baseline}'s")
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("held-out success, %")
    panels[-1].legend(frameon=False, fontsize=8, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Runs what is missing, prints the tables and draws the figure."""
    parser = new_parser(__doc__)
    parser.add_argument("--suite", choices=("learning", "recurring", "comparison"), default="learning")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=0, help="the number of runs at once; 0: one per core")
    parser.add_argument("--cabinets", nargs="+", choices=CABINETS, default=CABINETS)
    parser.add_argument("--shown", nargs="+", default=["elastic", "elastic, x 0.5", "P90 + 15, α=0.5, x 0.5", "TTI"])
    parser.add_argument("--figure", type=Path, default=None)
    parser.add_argument("--table", type=Path, default=None, help="a CSV file with a line for each run")
    parser.add_argument(
        "--from", dest="source", type=Path, default=None, help="print the tables of such a file, and run nothing"
    )
    args = parse(parser, runs=Path("runs/learning-smoke"), seeds=1, suite="comparison", cabinets=CABINETS[:1])
    if args.source is not None:
        print(command())
        sweeps = read_runs(args.source)
        print_together(sweeps)
        if args.figure is not None:
            draw(sweeps, args.shown, args.figure)
        return
    flags = [*FLAGS, *SMALL_RUN, "--eval-tasks", "1", "--eval-rollouts", "1"] if args.smoke else FLAGS
    for name in args.cabinets:
        words = ["--suite", args.suite, "--env", name, "--seeds", str(args.seeds), "--jobs", str(args.jobs), *flags]
        subprocess.run(
            [sys.executable, "-m", "harness.sweep", *words, "--out", str(args.runs / name)],
            check=True,
            stdout=sys.stderr,  # its progress, and what has failed
        )
    print(command())
    print(f"{cpu_name()}, torch {torch.__version__}; the tiny model, 60 updates of 64 episodes, 256 held-out episodes")
    console = Console(width=160, color_system=None)
    for name in args.cabinets:
        print(f"\n{name}")
        for table in read_tables(args.runs / name, [args.suite]):
            print_table(table, console)
    sweeps = {name: numbers_of(args.runs / name, args.suite) for name in args.cabinets}
    print_together(sweeps)
    if args.figure is not None:
        draw(sweeps, args.shown, args.figure)
    if args.table is not None:
        write_runs(sweeps, args.table)


if __name__ == "__main__":
    run(main)
