"""The quick start from K0 = 10 and from K0 = 50 with several seeds: where K settles, and how well the agent then does.

    python benchmarks/settling.py --runs runs/settling --figure docs/images/settling.png

One more run uses Algorithm 2's rounding, which stalls. Finished runs are not run again. A killed run is resumed. The
script also draws the figure of docs/what-we-found.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flags import SMALL_RUN, command, new_parser, parse, run, trained
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.run.metrics import read_metrics
from harness.run.versions import cpu_name

_COLOURS = {10: "#0072B2", 50: "#D55E00"}  # Okabe and Ito's blue and vermilion


def row(name: str, folder: Path) -> str:
    """Returns one line of the table."""
    rows = read_metrics(folder / "metrics.jsonl")
    result = json.loads((folder / "evaluation.json").read_text())
    before, after = result["before"]["sampled"]["mean_at_k"], result["after"]["sampled"]["mean_at_k"]
    greedy = result["after"]["greedy"]["mean_at_k"]
    seconds = sum(r["time/update_s"] for r in rows)
    return (
        f"{name:28} {rows[0]['horizon/k']:4.0f} {rows[-1]['horizon/k_real']:8.1f} {before:8.3f} {after:8.3f} "
        f"{greedy:8.3f} {rows[-1]['tokens/total']:9.0f} {seconds:8.0f}"
    )


def draw(runs: dict[tuple[int, int], Path], out: Path) -> None:
    """Draws K by update, with one line per seed and one colour per K0."""
    figure = Figure(figsize=(7.2, 3.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    labelled: set[int] = set()
    for (seed, k0), folder in runs.items():
        rows: list[dict[str, Any]] = read_metrics(folder / "metrics.jsonl")
        label = None if k0 in labelled else f"from K0 = {k0}, {len({s for s, _ in runs})} seeds"
        labelled.add(k0)
        x, y = [r["update"] for r in rows], [r["horizon/k_real"] for r in rows]
        axes.plot(x, y, color=_COLOURS[k0], linewidth=1.6, alpha=1.0 if seed == 0 else 0.55, label=label)
    axes.set_xlabel("update")
    axes.set_ylabel("horizon K, steps")
    axes.set_ylim(0, 52)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def main() -> None:
    """Runs what is missing, prints the table and draws the figure."""
    parser = new_parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/settling"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--figure", type=Path, default=None)
    args = parse(parser, runs=Path("runs/settling-smoke"), seeds=[0])
    smoke = [*SMALL_RUN, "--eval-tasks", "1", "--eval-rollouts", "1"] if args.smoke else []
    common = ["--wrapper", "elastic", "--truncated-weight", "1", *smoke]  # the paper's weight
    runs = {
        (seed, k0): trained(args.runs / f"seed{seed}-k{k0}", ["--seed", str(seed), "--k0", str(k0), *common])
        for seed in args.seeds
        for k0 in (10, 50)
    }
    stall = trained(args.runs / "floor", ["--seed", "0", "--k0", "10", "--rounding", "floor-state", *common])
    print(command())
    print(f"EH-Cabinet-v0, 60 updates of 64 episodes; success on 128 held-out tasks at K = 50; {cpu_name()}")
    print(f"{'':28} {'K0':>4} {'final K':>8} {'before':>8} {'after':>8} {'greedy':>8} {'tokens':>9} {'seconds':>8}")
    for (seed, _), folder in runs.items():
        print(row(f"elastic, seed {seed}", folder))
    print(row("Algorithm 2's rounding, seed 0", stall))
    if args.figure is not None:
        draw(runs, args.figure)


if __name__ == "__main__":
    run(main)
