"""The picture of a run: K, success and tokens by update, drawn from its metrics.jsonl alone.

Left out: pyplot, whose windows, backends and styles are the caller's; and several runs in one picture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from harness.run.files import whole_file
from harness.run.metrics import read_metrics

__all__ = ["draw_run"]

# Okabe and Ito's colours, told apart by colour-blind readers and in grey print.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"


def draw_run(metrics_jsonl: Path, out_png: Path, *, title: str) -> None:
    """Draws three panels over the updates: K with its boundary and target, success with its ceiling, tokens.

    Args:
        metrics_jsonl: The run's metrics; columns may be missing or empty, rows few or none.
        out_png: 1080 x 1200 pixels, written whole.
        title: Above the panels.

    Raises:
        StateError: `metrics_jsonl` is damaged.
    """
    rows = read_metrics(metrics_jsonl)
    x = np.array([row["update"] for row in rows], dtype=float)
    figure = Figure(figsize=(7.2, 8.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    top, middle, bottom = figure.subplots(3, 1, sharex=True)

    _line(top, x, _column(rows, "horizon/k"), "K", color=_BLUE, linewidth=2, drawstyle="steps-mid", zorder=3)
    _line(top, x, _column(rows, "horizon/boundary"), "boundary", color=_GREEN, linestyle="--")
    _line(top, x, _column(rows, "horizon/target"), "target", color=_ORANGE, linestyle=":")
    top.set_ylabel("steps")

    success = _column(rows, "rollout/success")
    _line(middle, x, _smooth(success), "success, mean of 5 updates", color=_BLUE, linewidth=2, zorder=3)
    _line(middle, x, success, "each update", color=_BLUE, linewidth=0.8, alpha=0.45)
    _line(middle, x, _column(rows, "rollout/success_ceiling"), "ceiling at K", color=_GREY, linestyle="--", linewidth=1)
    middle.set_ylim(-0.02, 1.02)
    middle.set_ylabel("share of episodes")

    total = bottom.twinx()
    _line(bottom, x, _column(rows, "tokens/update"), "tokens per update", color=_BLUE, linewidth=2)
    _line(total, x, _column(rows, "tokens/total"), "tokens so far (right)", color=_ORANGE, linestyle="--")
    bottom.set_ylabel("tokens per update")
    total.set_ylabel("tokens so far")
    bottom.set_xlabel("update")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    if rows:
        bottom.set_xlim(x[0] - 0.5, x[-1] + 0.5)

    for axes in (top, bottom, total):
        axes.set_ylim(bottom=0)
    for axes in (bottom, total):
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    for axes, others in ((top, ()), (middle, ()), (bottom, (total,))):
        _legend_above(axes, *others)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    total.spines["top"].set_visible(False)

    with whole_file(out_png) as part:
        figure.savefig(part, format="png")


def _legend_above(axes: Axes, *others: Axes) -> None:
    """One row above the panel, where no line can run through it; a panel without lines says so."""
    lines = [line for a in (axes, *others) for line in a.get_lines()]
    if lines:
        labels = [str(line.get_label()) for line in lines]
        axes.legend(
            lines,
            labels,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            borderaxespad=0.2,
            ncols=len(lines),
            fontsize=8,
            frameon=False,
        )
        return
    axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color=_GREY)
    for a in (axes, *others):
        a.set_yticks([])


def _column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=float)


def _smooth(values: np.ndarray, width: int = 5) -> np.ndarray:
    """The mean of those of the last `width` values that are known; NaN where this one is not."""
    windows = (values[max(0, i - width + 1) : i + 1] for i in range(len(values)))
    return np.array([np.nanmean(window) if np.isfinite(window[-1]) else np.nan for window in windows])


def _line(axes: Axes, x: np.ndarray, y: np.ndarray, label: str, **style: Any) -> None:
    """Draws the points there are, if any; a single one as a dot."""
    known = np.isfinite(y)
    if known.any():
        axes.plot(x[known], y[known], label=label, marker="o" if known.sum() == 1 else None, **style)
