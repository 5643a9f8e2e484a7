"""Draws the report's figures as SVG, from the runs' metrics.

Each figure is one panel that can be read on a phone. Arms differ in colour, line style and marker, so that colour-blind readers
can distinguish them, also in grey print. `harness.experiments.analysis` computes the numbers. pyplot's state is not touched.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from harness.experiments.plateau import Plateau
from harness.experiments.report.drawing import BLUE, GREY, ORANGE, Drawing, drawing_style, legend, panel, svg
from harness.experiments.report.runs import StoredArm, StoredRun, Suite
from harness.experiments.suite_table import SuiteTable

__all__ = ["draw_suite"]

# Okabe and Ito's colours, without the yellow, which is hard to see on white.
_COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
_BAND = "#F0C36D"
_PAPER_LENGTHS = "(In the paper, at step 100: 18.14 on AppWorld, 11.93 on BFCL.)"  # Table "Quantile statistics"

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class _Line:
    """The line of an arm: the mean over seeds, and the standard deviation of each point, which is None for one seed."""

    label: str
    x: list[float]
    mean: list[float]
    std: list[float | None]
    seeds: list[Points]


# The figures of each suite, in order. Runs that are named one by one get those of the comparison.
_FIGURES = {
    "saturation": ("saturation", "cost", "success", "lengths"),
    "convergence": ("k", "success", "lengths", "tokens"),
    "comparison": ("success by tokens", "success", "k", "tokens", "lengths"),
    "percentile": ("k", "success"),
    "headroom": ("k", "success"),
    "ema": ("k", "success"),
    "learning": ("success by tokens", "k", "tokens"),
    "recurring": ("success by tokens", "k", "tokens"),
    "pretrained": ("success by tokens", "k", "tokens", "lengths"),
}


@drawing_style()
def draw_suite(suite: Suite, table: SuiteTable, band: tuple[float, float] | None) -> list[Drawing]:
    """Draws the figures of one suite.

    Args:
        suite: The suite. Runs without metrics are not drawn.
        table: The numbers of the suite.
        band: The plateau of the saturation suite, in steps, if it is known.
    """
    arms = [arm for arm in suite.arms if any(run.rows for run in arm.runs)]
    if not arms:
        return []
    of_the_band = "The plateau of the saturation suite is shaded." if band else ""
    draw: dict[str, Callable[[], Drawing]] = {
        "saturation": lambda: _saturation(suite, table),
        "cost": lambda: _cost(suite, table),
        "success": lambda: _success(arms, by_tokens=False, held_out=suite.held_out),
        "success by tokens": lambda: _success(arms, by_tokens=True, held_out=suite.held_out),
        "k": lambda: _by_update(
            arms,
            "horizon/k",
            "K by update",
            "K (steps)",
            f"The controller's K in each update. Tasks that have a K of their own may have another. {of_the_band}",
            band=band,
        ),
        "tokens": lambda: _by_update(
            arms,
            "tokens/update",
            "Tokens per update",
            "tokens per update",
            "The tokens of all episodes of an update: prompts, observations and actions, each counted once. Mean of 5 updates.",
            smooth=5,
        ),
        "lengths": lambda: _by_update(
            arms,
            "rollout/length_success_mean",
            "Lengths of the successes",
            "steps, mean of the successes",
            f"The mean number of steps of the successful training episodes. Mean of 5 updates. {_PAPER_LENGTHS}",
            smooth=5,
        ),
    }
    return [draw[name]() for name in _FIGURES.get(suite.name, _FIGURES["comparison"])]


def _success(arms: Sequence[StoredArm], *, by_tokens: bool, held_out: bool) -> Drawing:
    """Draws success by update, or by the tokens until then."""
    what = (
        "held-out episodes at K = k_max"
        if held_out
        else "training episodes at the K of that time, as the mean of 5 updates"
    )
    curves = {id(run): run.curve(held_out=held_out) for arm in arms for run in arm.runs}
    lines = [_line(arm, lambda run: [(p.updates, p.success) for p in curves[id(run)]]) for arm in arms]
    caption = f"The share of successes among {what}. {_seeds_note(arms)}"
    if not by_tokens:
        return _lines("Success by update", caption, lines, "updates", "success", share=True)
    over_tokens = []
    for arm, line in zip(arms, lines, strict=True):
        # A point is the mean tokens and the mean success after the same number of updates.
        tokens = _line(arm, lambda run: [(p.updates, p.tokens) for p in curves[id(run)]])
        seeds = [[(p.tokens, p.success) for p in curves[id(run)]] for run in arm.runs if run.rows]
        over_tokens.append(_Line(arm.label, tokens.mean, line.mean, line.std, seeds))
    return _lines(
        "Success by tokens", caption, over_tokens, "training tokens so far", "success", share=True, tokens=True
    )


def _by_update(
    arms: Sequence[StoredArm],
    metric: str,
    title: str,
    axis: str,
    caption: str,
    *,
    band: tuple[float, float] | None = None,
    smooth: int = 1,
) -> Drawing:
    """Draws a metric by update. Each point is the mean of the last `smooth` known values."""

    def values(run: StoredRun) -> Points:
        known = [(row["update"], row[metric]) for row in run.rows if row.get(metric) is not None]
        last = [known[max(0, i + 1 - smooth) : i + 1] for i in range(len(known))]
        return [(some[-1][0], statistics.fmean(y for _, y in some)) for some in last]

    lines = [_line(arm, values) for arm in arms]
    return _lines(title, f"{caption} {_seeds_note(arms)}".strip(), lines, "update", axis, band=band)


def _line(arm: StoredArm, points: Callable[[StoredRun], Points]) -> _Line:
    """Makes the line of an arm. A point is the mean over all seeds that have reached it."""
    seeds = [points(run) for run in arm.runs if run.rows]
    by_x: dict[float, list[float]] = {}
    for one in seeds:
        for x, y in one:
            if math.isfinite(y):
                by_x.setdefault(x, []).append(y)
    xs = sorted(by_x)
    return _Line(
        arm.label,
        xs,
        [statistics.fmean(by_x[x]) for x in xs],
        [statistics.stdev(by_x[x]) if len(by_x[x]) > 1 else None for x in xs],
        seeds,
    )


def _lines(
    title: str,
    caption: str,
    lines: Sequence[_Line],
    x_axis: str,
    y_axis: str,
    *,
    share: bool = False,
    tokens: bool = False,
    band: tuple[float, float] | None = None,
) -> Drawing:
    figure, axes = panel()
    if band:
        half = 0.5 if band[0] == band[1] else 0.0  # a band of one K must be visible too
        axes.axhspan(band[0] - half, band[1] + half, color=_BAND, alpha=0.35, linewidth=0, label="plateau band")
    for i, line in enumerate(lines):
        colour, style, marker = _look(i, len(lines))
        for seed in line.seeds:
            if len(line.seeds) > 1 and seed:
                axes.plot(*zip(*seed, strict=True), color=colour, linewidth=0.6, alpha=0.3)
        axes.plot(
            line.x,
            line.mean,
            color=colour,
            linestyle=style,
            linewidth=1.8,
            marker=marker,
            markersize=4.5,
            markevery=(min(i, max(0, len(line.x) - 1)), max(1, math.ceil(len(line.x) / 8))),
            label=line.label,
        )
        if len(lines) <= 5:
            _ribbon(axes, line, colour)
    axes.set_xlabel(x_axis)
    axes.set_ylabel(y_axis)
    if share:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    if tokens:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    legend(axes)
    ends = "; ".join(_from_to(line, share) for line in lines)
    shaded = f" The plateau band from {band[0]:g} to {band[1]:g} steps is shaded." if band else ""
    return Drawing(title, caption, svg(figure), f"Line chart of {y_axis} by {x_axis}. {ends}.{shaded}")


def _saturation(suite: Suite, table: SuiteTable) -> Drawing:
    """Draws the success after training by the K of the training, with the plateau shaded."""
    points = _over_k(suite, table, "success_at_k")
    figure, axes = panel()
    found = table.plateau
    if found is not None:
        low, high = _band_edges(found, [k for k, *_ in points])
        axes.axvspan(low, high, color=_BAND, alpha=0.35, linewidth=0, label=f"plateau, K = {_ks(found)}")
    _bars(axes, points, "success at its own K, held-out", _COLOURS[0], "o", "-")
    _bars(axes, _over_k(suite, table, "mean_at_k"), "mean@k, at K = k_max", GREY, "s", "--")
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set_ylabel("success after training")
    _k_axis(axes, points)
    words = "; ".join(f"K={k:g}: {100 * mean:.1f} %" for k, mean, _ in points)
    note = f"The plateau is K = {_ks(found)}. " if found else ""
    return Drawing(
        "Success over the training K",
        f"The held-out success of models that were trained under a fixed K. {note}Bars are ± 1 standard deviation over seeds.",
        svg(figure),
        f"Success over K. {words}. {note}",
    )


def _cost(suite: Suite, table: SuiteTable) -> Drawing:
    points = _over_k(suite, table, "tokens_per_update")
    figure, axes = panel()
    _bars(axes, points, "tokens per update, mean of the run", _COLOURS[1], "s", "-")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylabel("tokens per update")
    _k_axis(axes, points)
    words = "; ".join(f"K={k:g}: {mean:,.0f}" for k, mean, _ in points)
    return Drawing(
        "Cost over the training K",
        "The tokens of all episodes of an update, as the mean over the run. Bars are ± 1 standard deviation over seeds.",
        svg(figure),
        f"Tokens per update over K. {words}.",
    )


def _over_k(suite: Suite, table: SuiteTable, key: str) -> list[tuple[float, float, float | None]]:
    """Returns K, mean and standard deviation of a column of the table, sorted by K."""
    column = [c.key for c in table.columns].index(key)
    settings = {arm.label: arm.settings for arm in suite.arms}
    found = ((float(settings[label]["k0"]), values[column]) for label, _, values in table.rows)
    return sorted((k, value.mean, value.std) for k, value in found if value is not None)


def _bars(
    axes: Axes,
    points: Sequence[tuple[float, float, float | None]],
    label: str,
    colour: str,
    marker: str,
    style: Any,
) -> None:
    if points:
        ks, means, stds = zip(*points, strict=True)
        errors = [std or 0.0 for std in stds]
        axes.errorbar(ks, means, errors, color=colour, marker=marker, linestyle=style, capsize=3, label=label)


def _k_axis(axes: Axes, points: Sequence[tuple[float, float, float | None]]) -> None:
    axes.set_xlabel("K of the training (steps)")
    axes.set_xticks([k for k, *_ in points])
    legend(axes)


def _ks(found: Plateau) -> str:
    return str(found.low) if found.low == found.high else f"{found.low} to {found.high}"


def _band_edges(found: Plateau, ks: Sequence[float]) -> tuple[float, float]:
    """Returns the edges of the plateau, moved halfway to the next K that was tried, so that a band of one K is visible."""
    below = max((k for k in ks if k < found.low), default=found.low - 2)
    above = min((k for k in ks if k > found.high), default=found.high + 4)
    return (found.low + below) / 2, (found.high + above) / 2


def _look(i: int, of: int) -> tuple[Any, Any, str]:
    """Returns the colour, line style and marker of the i-th arm. Many arms get a colour scale from dark to light."""
    marker = _MARKERS[i % len(_MARKERS)]
    if of <= len(_COLOURS):
        return _COLOURS[i], _STYLES[i], marker
    return matplotlib.colormaps["viridis"](0.88 * i / (of - 1)), _STYLES[i % 4], marker


def _ribbon(axes: Axes, line: _Line, colour: Any) -> None:
    known = [(x, m, s) for x, m, s in zip(line.x, line.mean, line.std, strict=True) if s is not None]
    if len(known) > 1:
        x, mean, std = zip(*known, strict=True)
        low, high = [m - s for m, s in zip(mean, std, strict=True)], [m + s for m, s in zip(mean, std, strict=True)]
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)


def _from_to(line: _Line, share: bool) -> str:
    if not line.mean:
        return f"{line.label}: not recorded"
    first, last = (f"{100 * v:.1f} %" if share else f"{v:,.1f}" for v in (line.mean[0], line.mean[-1]))
    return f"{line.label}: from {first} to {last}"


def _seeds_note(arms: Sequence[StoredArm]) -> str:
    counts = sorted({sum(bool(run.rows) for run in arm.runs) for arm in arms})
    if counts == [1]:
        return "Each arm has one seed."
    of = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    ribbon = ", and ribbons are ± 1 standard deviation" if len(arms) <= 5 else ""
    return f"Thick lines are the mean of {of} seeds, thin lines are single seeds{ribbon}."
