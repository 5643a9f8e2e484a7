"""Draws K and success by update for runs with several horizons and seeds, and prints a table of them.

python tools/draw_arms.py docs/images/k-in-textworld.svg runs/textworld/*
"""

from __future__ import annotations

import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from drawing import BLACK, BLUE, GREEN, ORANGE, PURPLE, band, panels, save, smooth

from harness.evaluation.intervals import wilson_interval
from harness.sweep.analysis import paired_difference
from harness.sweep.runs import SweptRun, read_run

COLORS = (BLUE, ORANGE, GREEN, PURPLE, BLACK, "#56B4E9", "#E69F00", "#F0E442")


def arm(run: SweptRun) -> str:
    """The name of a run's horizon."""
    k0, key = run.config["k0"], run.config.get("horizon_key")
    if run.config["wrapper"] == "fixed":
        return f"fixed, K = {k0}"
    headroom = f", P90 + {run.config['delta']:g}" * (run.config["wrapper"] == "elastic" and run.config["delta"] != 10)
    return run.config["wrapper"] + f" from K0 = {k0}" * (k0 is not None) + headroom + f", by {key}" * bool(key)


def share(values: list[dict[str, Any]]) -> str:
    """The share of successes in the evaluations of several seeds, with Wilson's interval for all episodes."""
    won, played = (sum(one[name] for one in values) for name in ("successes", "episodes"))
    return "{:6.3f} ({:.3f} to {:.3f})".format(won / played, *wilson_interval(won / played, played))


def by_kind(runs: list[SweptRun]) -> dict[str, float]:
    """The mean success of each kind of task, if the environment names kinds."""
    parts = [part for run in runs for part in run.result().get("parts", ()) if part["kind"] == "kind"]
    names = dict.fromkeys(part["name"] for part in parts)
    return {name: float(np.mean([part["mean_at_k"] for part in parts if part["name"] == name])) for name in names}


def main() -> None:
    """Reads the runs that the command line names, prints the table and writes the figure."""
    out, *folders = sys.argv[1:]
    arms: dict[str, list[SweptRun]] = {}
    for run in (read_run(Path(folder)) for folder in folders):
        arms.setdefault(arm(run), []).append(run)
    arms = dict(sorted(arms.items()))
    print(f"{'':38} seeds {'final K':>16} {'train, last 10':>24} {'held out':>24} {'greedy':>24} {'tokens':>8}")
    tokens = {name: np.mean([run.rows["tokens/total"].iloc[-1] for run in runs]) for name, runs in arms.items()}
    figure, axes = panels(2, title="")
    for (name, runs), color in zip(arms.items(), cycle(COLORS), strict=False):
        k, success = ([run.rows[key].to_numpy() for run in runs] for key in ("horizon/k", "rollout/success"))
        last = [values[-10:].mean() for values in success]
        print(
            f"{name:38} {len(runs):5} {', '.join(f'{one[-1]:.0f}' for one in k):>16} "
            f"{np.mean(last):8.3f} ({min(last):.3f} to {max(last):.3f}) {share([run.result() for run in runs])} "
            f"{share([run.result(how='greedy') for run in runs])} "
            f"{tokens[name]:8.0f}"
        )
        x = range(1, len(k[0]) + 1)
        if not name.startswith("fixed"):
            band(axes[0, 0], x, k, name, color)
        band(axes[1, 0], x, [smooth(values, 5) for values in success], name, color)
    first = {run.seed: run for runs in arms.values() for run in runs}.values()  # the runs of a seed begin alike
    print(f"{'before training':38} {'':47} {share([run.result('before') for run in first])}", end=" ")
    print(share([run.result("before", "greedy") for run in first]))
    largest = max(arms, key=lambda name: (name.startswith("fixed"), arms[name][0].config["k0"] or 0))
    held_out = {name: pd.Series({run.seed: run.result()["mean_at_k"] for run in runs}) for name, runs in arms.items()}
    print(f"\nHeld out, points from {largest} by seed, with Student's 95 % interval; tokens / its; success by kind")
    for name, runs in arms.items():
        difference = None if name == largest else paired_difference(held_out[name], held_out[largest])
        shown = "{:+6.1f} ({:+.1f} to {:+.1f})".format(*(100 * x for x in difference)) if difference else ""
        print(
            f"{name:38} {shown:24}{tokens[name] / tokens[largest]:6.2f}",
            *(f"{kind} {mean:.3f}" for kind, mean in by_kind(runs).items()),
            sep="  ",
        )
    axes[0, 0].set(ylabel="K, steps", ylim=(0, 52))
    axes[1, 0].set(ylabel="success, mean of 5 updates", xlabel="update", ylim=(0, 1))
    for one in axes[:, 0]:
        one.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))  # beside the lines
    save(figure, Path(out))


if __name__ == "__main__":
    main()
