"""Draws success over tokens for the runs of `benchmarks/learning.py`, in a panel for each cabinet.

python tools/draw_learning.py docs/images/learning.png benchmarks/results/learning-runs.csv
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from flags import save
from learning import HALF, WIDE, fixed_arms, shares

SHOWN = ("elastic", f"elastic{HALF}", WIDE, "TTI")


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


if __name__ == "__main__":
    draw(pd.read_csv(sys.argv[2], index_col=["environment", "arm", "seed"]), Path(sys.argv[1]))
