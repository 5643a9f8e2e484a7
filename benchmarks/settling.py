"""The tiny model from K0 = 10 and from K0 = 50 with several seeds: where K settles, and how well the agent then does.

    python benchmarks/settling.py --runs runs/settling --figure docs/images/settling.png

One more run uses Algorithm 2's rounding, which stalls. Finished runs are not run again. A killed run is resumed.
"""

from __future__ import annotations

from pathlib import Path

from flags import SMALL_RUN, command, new_parser, parse, run, save, trained
from matplotlib.figure import Figure

from harness.records.versions import cpu_name
from harness.sweep.runs import SweptRun, read_run


def row(name: str, one: SweptRun) -> str:
    """Returns one line of the table."""
    before, after, greedy = (one.result(*of)["mean_at_k"] for of in (("before",), ("after",), ("after", "greedy")))
    k, k_real = one.rows["horizon/k"], one.rows["horizon/k_real"]
    return (
        f"{name:28} {k.iloc[0]:4.0f} {k_real.iloc[-1]:8.1f} {before:8.3f} {after:8.3f} "
        f"{greedy:8.3f} {one.rows['tokens/total'].iloc[-1]:9.0f} {one.rows['time/update_s'].sum():8.0f}"
    )


def draw(runs: dict[tuple[int, int], SweptRun], out: Path) -> None:
    """Draws K by update, with one line per seed and one colour per K0."""
    figure = Figure(figsize=(7.2, 3.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    for (seed, k0), one in runs.items():
        colour = {10: "#0072B2", 50: "#D55E00"}[k0]  # Okabe and Ito's blue and vermilion
        label = f"from K0 = {k0}, {len(runs) // 2} seeds" if seed == min(runs)[0] else None
        axes.plot(one.rows["horizon/k_real"], color=colour, linewidth=1.6, alpha=0.55 if seed else 1.0, label=label)
    axes.set_xlabel("update")
    axes.set_ylabel("horizon K, steps")
    axes.set_ylim(0, 52)
    axes.legend(frameon=False, loc="upper right")
    save(figure, out)


def main() -> None:
    """Runs what is missing, prints the table and draws the figure."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/settling"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--figure", type=Path, default=None)
    args = parse(parser, runs=Path("runs/settling-smoke"), seeds=[0])
    common = ["--wrapper", "elastic", "--truncated-weight", "1"]  # the paper's weight
    common += [*SMALL_RUN, "--eval-tasks", "1", "--eval-rollouts", "1"] if args.smoke else []
    runs = {
        (seed, k0): read_run(trained(args.runs / f"seed{seed}-k{k0}", ["--seed", str(seed), "--k0", str(k0), *common]))
        for seed in args.seeds
        for k0 in (10, 50)
    }
    stall = trained(args.runs / "floor", ["--seed", "0", "--k0", "10", "--rounding", "floor-state", *common])
    print(command())
    print(f"EH-Cabinet-v0, 60 updates of 64 episodes; success on 128 held-out tasks at K = 50; {cpu_name()}")
    print(f"{'':28} {'K0':>4} {'final K':>8} {'before':>8} {'after':>8} {'greedy':>8} {'tokens':>9} {'seconds':>8}")
    for (seed, _), one in runs.items():
        print(row(f"elastic, seed {seed}", one))
    print(row("Algorithm 2's rounding, seed 0", read_run(stall)))
    if args.figure is not None:
        draw(runs, args.figure)


if __name__ == "__main__":
    run(main)
