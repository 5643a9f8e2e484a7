"""The picture of a run: K, success and tokens by update, drawn from its metrics.jsonl alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from harness.metrics import read_metrics

__all__ = ["draw_run"]

# Okabe and Ito's colours, told apart by colour-blind readers and in grey print.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"


def draw_run(metrics_jsonl: Path, out_png: Path, *, title: str) -> None:
    """Draws three panels over the updates: K with its boundary and target, success with its ceiling, tokens.

    Args:
        metrics_jsonl: The run's metrics; columns may be missing or empty.
        out_png: Written whole.
        title: Above the panels.
    """
    rows = read_metrics(metrics_jsonl)
    x = np.array([row["update"] for row in rows], dtype=float)
    figure = Figure(figsize=(7.2, 7.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    top, middle, bottom = figure.subplots(3, 1, sharex=True)

    _line(top, x, _column(rows, "horizon/target"), "target", color=_ORANGE, linestyle=":")
    _line(top, x, _column(rows, "horizon/boundary"), "boundary (P90)", color=_GREEN, linestyle="--")
    if _line(top, x, _column(rows, "horizon/k"), "K", color=_BLUE, linewidth=2, drawstyle="steps-mid"):
        top.set_ylim(bottom=0)
    else:
        top.text(0.5, 0.5, "no horizon", transform=top.transAxes, ha="center", color=_GREY)
    top.set_ylabel("steps")

    success = _column(rows, "rollout/success")
    _line(middle, x, success, None, color=_BLUE, linewidth=0.8, alpha=0.4)
    _line(middle, x, _smooth(success), "success, mean of 5 updates", color=_BLUE, linewidth=2)
    _line(middle, x, _column(rows, "rollout/success_ceiling"), "ceiling at K", color=_GREY, linestyle="--", linewidth=1)
    middle.set_ylim(0, 1.02)
    middle.set_ylabel("share of episodes")

    _line(bottom, x, _column(rows, "tokens/update"), "tokens per update", color=_BLUE, linewidth=2)
    bottom.set_ylim(bottom=0)
    bottom.set_ylabel("tokens per update")
    bottom.set_xlabel("update")
    bottom.yaxis.set_major_formatter(EngFormatter())
    total = bottom.twinx()
    _line(total, x, _column(rows, "tokens/total"), "tokens so far (right)", color=_ORANGE, linestyle="--")
    total.set_ylim(bottom=0)
    total.yaxis.set_major_formatter(EngFormatter())
    total.set_ylabel("tokens so far")

    handles, labels = (
        a + b for a, b in zip(bottom.get_legend_handles_labels(), total.get_legend_handles_labels(), strict=True)
    )
    bottom.legend(handles, labels, fontsize=8, frameon=False, loc="lower right")
    for axes in (top, middle):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False, loc="lower right")
    for axes in (top, middle, bottom):
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out_png, format="png")


def _column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=float)


def _smooth(values: np.ndarray, width: int = 5) -> np.ndarray:
    """The mean of the last `width` values."""
    return np.array([values[max(0, i - width + 1) : i + 1].mean() for i in range(len(values))])


def _line(axes: Axes, x: np.ndarray, y: np.ndarray, label: str | None, **style: Any) -> bool:
    """Draws the points there are; a single one as a dot. Returns whether there was any."""
    known = np.isfinite(y)
    if not known.any():
        return False
    axes.plot(x[known], y[known], label=label, marker="o" if known.sum() == 1 else None, **style)
    return True
