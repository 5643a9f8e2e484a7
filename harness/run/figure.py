"""The figure of one run: K, success and tokens by update, drawn from its metrics.jsonl.

It does not touch pyplot's state, which belongs to the caller. `harness.report` draws several runs in one figure.
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

# Okabe and Ito's colours. Colour-blind readers can distinguish them, also in grey print.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"


def draw_run(metrics_jsonl: Path, out_png: Path, *, title: str) -> None:
    """Draws three panels by update: K with its boundary and target, success with its ceiling, and tokens.

    Args:
        metrics_jsonl: The run's metrics. Columns may be missing or empty, and there may be no rows.
        out_png: The picture to write, 1080 x 1200 pixels. It is written completely or not at all.
        title: The text above the panels.

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
    """Puts the legend in one row above the panel, where no line crosses it. A panel without lines says "not recorded"."""
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
    """Returns for each value the mean of the known ones among the last `width`. It is NaN if the value itself is not known."""
    windows = (values[max(0, i - width + 1) : i + 1] for i in range(len(values)))
    return np.array([np.nanmean(window) if np.isfinite(window[-1]) else np.nan for window in windows])


def _line(axes: Axes, x: np.ndarray, y: np.ndarray, label: str, **style: Any) -> None:
    """Draws the known points, if there are any. A single point becomes a dot."""
    known = np.isfinite(y)
    if known.any():
        axes.plot(x[known], y[known], label=label, marker="o" if known.sum() == 1 else None, **style)
