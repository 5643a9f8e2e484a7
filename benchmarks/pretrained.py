"""What the runs of the suite `pretrained` did: a row for each run, the differences from the longest fixed K, and each update.

    OMP_NUM_THREADS=1 python -m harness.sweep --suite pretrained --env EH-BFCL-v0 --out runs/pretrained
    python benchmarks/pretrained.py runs/pretrained
    python benchmarks/pretrained.py --smoke

It prints the sweep's own table first. --smoke prints what the repository keeps of our runs on EH-BFCL.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from flags import command, new_parser, parse, run
from rich.console import Console

from harness.experiments.analysis import Arm, RunRecords, paired_difference
from harness.experiments.report.runs import read_suites
from harness.experiments.suite_table import baseline_of
from harness.sweep import print_table, read_tables

KEPT = Path(__file__).parent / "results" / "pretrained-bfcl"
SUITE = "pretrained"
ALL = slice(None)

_SHOWN = (
    "horizon/k",
    "rollout/success",
    "rollout/length_success_mean",
    "rollout/truncated",
    "tokens/update",
    "train/entropy",
)


def evaluated(one: RunRecords, when: str, how: str) -> float:
    """The held-out success before or after training, of sampled or of greedy actions."""
    return float(one.evaluation[when][how]["mean_at_k"])


def mean(one: RunRecords, metric: str, updates: slice = ALL) -> float:
    """The mean of a metric over those updates that have it: one whose environments all failed has none."""
    found = [float(row[metric]) for row in one.rows[updates] if row[metric] is not None]
    return statistics.fmean(found) if found else float("nan")


def halves(one: RunRecords) -> tuple[float, float]:
    """The success in training in each half of the updates: at the first and second time of tasks that come twice."""
    middle = len(one.rows) // 2
    return mean(one, "rollout/success", slice(middle)), mean(one, "rollout/success", slice(middle, None))


def points(own: Mapping[int, float], other: Mapping[int, float]) -> str:
    """The difference in points, seed by seed, with its 95 % interval."""
    found = paired_difference(own, other)
    return "-" if found is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * x for x in found))


def last_k(one: RunRecords) -> float:
    """The controller's real K in the last update."""
    return float(one.rows[-1].get("horizon/k_real", one.rows[-1]["horizon/k"]))


def print_runs(arms: Sequence[Arm]) -> None:
    """Prints a row for each run."""
    print(
        f"\n{'arm':20}{'seed':>6}{'before':>8}{'greedy':>8}{'after':>8}{'95 %':>14}{'greedy':>8}{'success in training':>21}"
        f"{'1st half':>10}{'2nd half':>10}{'cut off':>9}{'K at the end':>14}{'tokens':>9}{'minutes of the updates':>24}"
    )
    for arm in arms:
        for one in arm.runs:
            before, greedy_before, after, greedy = (
                f"{evaluated(one, when, how):8.3f}" for when in ("before", "after") for how in ("sampled", "greedy")
            )
            interval = "{:.3f}-{:.3f}".format(*one.evaluation["after"]["sampled"]["mean_interval"])
            first, second = halves(one)
            last = one.rows[-1]
            print(
                f"{arm.label:20}{one.seed:6}{before}{greedy_before}{after}{interval:>14}{greedy}"
                f"{mean(one, 'rollout/success'):21.3f}{first:10.3f}{second:10.3f}"
                f"{mean(one, 'rollout/truncated'):9.3f}{last_k(one):14.1f}"
                f"{last['tokens/total']:9.0f}{last['time/total_s'] / 60:24.1f}"
            )


def print_differences(arms: Sequence[Arm], baseline: Arm) -> None:
    """Prints what each arm has more than the baseline, in points, seed by seed."""

    def by_seed(arm: Arm) -> tuple[Mapping[int, float], ...]:
        after = {one.seed: evaluated(one, "after", "sampled") for one in arm.runs}
        training = {one.seed: mean(one, "rollout/success") for one in arm.runs}
        return after, training, {one.seed: halves(one)[1] for one in arm.runs}

    print(f"\npoints from {baseline.label}, seed by seed, with 95 % intervals (Student's t)")
    print(f"{'arm':20}{'held-out success':>28}{'success in training':>28}{'in its 2nd half':>28}")
    for arm in arms:
        if arm is not baseline:
            cells = map(points, by_seed(arm), by_seed(baseline))
            print(f"{arm.label:20}" + "".join(f"{cell:>28}" for cell in cells))
    print("\npoints from the 1st half of training to the 2nd, likewise")
    for arm in arms:
        first, second = ({one.seed: halves(one)[half] for one in arm.runs} for half in (0, 1))
        print(f"{arm.label:20}{points(second, first):>28}")


def print_updates(arm: Arm, one: RunRecords) -> None:
    """Prints a row for each update of a run."""
    print(f"\n{arm.label}, seed {one.seed}: update, K, success, mean length of the successes, cut off, tokens, entropy")
    for row in one.rows:
        k, success, length, truncated, tokens, entropy = (
            float("nan") if row[name] is None else row[name] for name in _SHOWN
        )
        print(f"{row['update']:4}{k:5.0f}{success:7.3f}{length:7.1f}{truncated:7.3f}{tokens:8.0f}{entropy:7.3f}")


def main() -> None:
    """Prints everything."""
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=KEPT, help="the sweep's --out")
    args = parse(parser)
    print(command())
    for table in read_tables(args.folder, [SUITE]):
        print_table(table, Console(width=160, color_system=None))
    [suite] = [suite for suite in read_suites([args.folder]) if suite.name == SUITE]
    arms = [arm.ended for arm in suite.arms if arm.ended.runs]
    print_runs(arms)
    if (baseline := baseline_of(arms)) is not None:
        print_differences(arms, baseline)
    for arm in arms:
        for each in arm.runs:
            print_updates(arm, each)


if __name__ == "__main__":
    run(main)
