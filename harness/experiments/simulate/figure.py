"""The figure of a simulation: K from each start, the map that K follows, the dead band, and the noise of groups.

It does not touch pyplot's state, which belongs to the caller.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.run.files import whole_file

__all__ = ["draw_simulation"]

# Okabe and Ito's colours, each with its own dash. Colour-blind readers can distinguish them, also in grey print.
_STYLE = [
    ("#0072B2", "-"),
    ("#D55E00", "--"),
    ("#009E73", "-."),
    ("#CC79A7", ":"),
    ("#7F7F7F", (0, (5, 1, 1, 1, 1, 1))),
]
_WORDS = {"floor": "real K", "floor-state": "Algorithm 2"}


def draw_simulation(result: dict[str, Any], out_png: Path) -> None:
    """Draws four panels from the content of `simulation.json`. The picture has 1500 x 1125 pixels."""
    figure = Figure(figsize=(10, 7.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{result['law']['name']}: the horizon controller without a model", fontsize=11)
    panels = figure.subplots(2, 2)
    _runs(panels[0, 0], result)
    _map(panels[0, 1], result)
    _dead_band(panels[1, 0], result)
    _groups(panels[1, 1], result)
    for axes in panels.flat:
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7, frameon=False)
    with whole_file(out_png) as part:
        figure.savefig(part, format="png")


def _runs(axes: Axes, result: dict[str, Any]) -> None:
    rows = [row for row in result["settling"] if row["truncation"] and row["rounding"] in _WORDS]
    for row in rows:
        color, dash = _STYLE[list(_WORDS).index(row["rounding"])]
        low, middle, high = row["k_by_update"]
        first = row["k0"] == rows[0]["k0"]
        axes.plot(middle, color=color, linestyle=dash, label=_WORDS[row["rounding"]] if first else None)
        axes.fill_between(np.arange(len(low)), low, high, color=color, alpha=0.2, linewidth=0)
    axes.set(xlabel="update", ylabel="K, steps", title="K from each start (median, 10 to 90 % of the runs)")


def _map(axes: Axes, result: dict[str, Any]) -> None:
    points = result["map"]
    axes.plot(points["k"], points["target"], color=_STYLE[0][0], drawstyle="steps-mid", label="target at this K")
    axes.plot(points["k"], points["k"], color=_STYLE[4][0], linewidth=1, label="K stays")
    stable = result["fixed_points"]
    axes.plot(stable, stable, "o", color=_STYLE[1][0], label="comes to rest")
    axes.set(xlabel="K, steps", ylabel="target, steps", title="K grows where the target is above the line")


def _dead_band(axes: Axes, result: dict[str, Any]) -> None:
    alphas = sorted({row["alpha"] for row in result["dead_band"]})
    for i, alpha in enumerate(alphas):
        rows = [row for row in result["dead_band"] if row["alpha"] == alpha]
        color, dash = _STYLE[i % len(_STYLE)]
        deltas = [row["delta"] for row in rows]
        gap = [row["floor_state_from_high"] - row["floor_state_from_low"] for row in rows]
        axes.plot(deltas, gap, color=color, linestyle=dash, marker="o", markersize=3, label=f"alpha {alpha:g}")
    axes.set(
        xlabel="delta, steps", ylabel="steps", title="Algorithm 2: final K from the highest start minus from the lowest"
    )


def _groups(axes: Axes, result: dict[str, Any]) -> None:
    rows = result["groups"]
    x = [row["group"] for row in rows]
    for (color, dash), name, label in (
        (_STYLE[0], "boundary_std", "P90"),
        (_STYLE[1], "wobble", "K"),
        (_STYLE[2], "end_std", "end, between runs"),
    ):
        y = [np.nan if row[name] is None else row[name] for row in rows]
        axes.plot(x, y, color=color, linestyle=dash, marker="o", markersize=3, label=label)
    axes.set(xlabel="episodes of one task", ylabel="standard deviation, steps", title="the noise of grouped tasks")
