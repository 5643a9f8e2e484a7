"""What the runs of the suite `pretrained` did: each run, its difference from the longest fixed K, and each update.

    python -m harness.sweep --suite pretrained --recipe recipes/smollm2-bfcl.toml --out runs/pretrained
    python benchmarks/pretrained.py runs/pretrained

It prints the sweep's own table first. --smoke prints what the repository keeps of our runs on EH-BFCL.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from flags import command, interval, new_parser, parse, run
from rich.console import Console

from harness.sweep.analysis import baseline_of, paired_difference
from harness.sweep.runs import SweptRun, read_suites
from harness.sweep.sweep import print_results, read_tables

KEPT = Path(__file__).parent / "results" / "pretrained-bfcl"
SUITE = "pretrained"
UPDATES = {
    "K": "horizon/k",
    "success": "rollout/success",
    "length of the successes": "rollout/length_success_mean",
    "cut off": "rollout/truncated",
    "tokens": "tokens/update",
    "entropy": "train/entropy",
}


def row(one: SweptRun) -> dict[str, float | str]:
    """What a run did. The halves are those of the updates: the first and second time of tasks that come twice."""
    success, middle = one.metric("rollout/success"), len(one.rows) // 2
    sampled, greedy = (
        {when: one.result(when, how)["mean_at_k"] for when in ("before", "after")} for how in ("sampled", "greedy")
    )
    return {
        "before": sampled["before"],
        "greedy before": greedy["before"],
        "after": sampled["after"],
        "95 %": "{:.3f}-{:.3f}".format(*one.result()["mean_interval"]),
        "greedy": greedy["after"],
        "success in training": success.mean(),
        "1st half": success[success.index < middle].mean(),
        "2nd half": success[success.index >= middle].mean(),
        "cut off": one.metric("rollout/truncated").mean(),
        "K at the end": one.metric("horizon/k_real", "horizon/k").iloc[-1],
        "tokens": one.rows["tokens/total"].iloc[-1],
        "minutes of the updates": one.rows["time/total_s"].iloc[-1] / 60,
    }


def show(table: pd.DataFrame) -> None:
    """Prints a table, with the rows' names to the left."""
    shown = table.to_string(sparsify=False, float_format=lambda x: f"{x:.{0 if x >= 1000 else 1 if x >= 2 else 3}f}")
    print(shown)


def main() -> None:
    """Prints everything."""
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=KEPT, help="the sweep's --out")
    args = parse(parser)
    print(command())
    for table in read_tables(args.folder, [SUITE]):
        print_results(table, Console(width=160, color_system=None))
    [suite] = [suite for suite in read_suites([args.folder]) if suite.name == SUITE]
    runs = {(arm.label, one.seed): one for arm in suite.arms for one in arm.ended}
    rows = pd.DataFrame({key: row(one) for key, one in runs.items()}).T.infer_objects()
    print()
    show(rows)
    labels = list(dict.fromkeys(label for label, _ in runs))
    if (baseline := baseline_of([arm for arm in suite.arms if arm.ended])) is not None:
        print(f"\npoints from {baseline.label}, seed by seed, with 95 % intervals (Student's t)")
        print(f"{'arm':20}{'held-out success':>28}{'success in training':>28}{'in its 2nd half':>28}")
        for label in (label for label in labels if label != baseline.label):
            shown = [rows[name].astype(float) for name in ("after", "success in training", "2nd half")]
            cells = [interval(paired_difference(of[label], of[baseline.label])) for of in shown]
            print(f"{label:20}" + "".join(f"{cell:>28}" for cell in cells))
        print("\npoints from the 1st half of training to the 2nd, likewise")
        first, second = rows["1st half"].astype(float), rows["2nd half"].astype(float)
        for label in labels:
            print(f"{label:20}{interval(paired_difference(second[label], first[label])):>28}")
    for (label, seed), one in runs.items():
        print(f"\n{label}, seed {seed}")
        show(one.rows[list(UPDATES.values())].set_axis(list(UPDATES), axis=1))


if __name__ == "__main__":
    run(main)
