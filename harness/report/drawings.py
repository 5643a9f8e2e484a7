"""Draws the report's figures as SVG, from the runs' metrics and episode logs.

Each figure is one panel that can be read on a phone. Arms differ in colour, line style and marker, so that colour-blind
readers can distinguish them, also in grey print. pyplot's state is not touched.
"""

import base64
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from harness.evaluation.folder import KeptEvaluation
from harness.evaluation.saturation import saturation
from harness.records.episode_log import read_episodes
from harness.sweep.analysis import SuiteTable, success_curve
from harness.sweep.runs import Suite, SweptRun
from harness.sweep.suites import suite_file

# Okabe and Ito's colours, without the yellow, which is hard to see on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
_MARKERS = "os^DvPX*<"
_GREY, _BAND = "#6E6E6E", "#F0C36D"
_STYLE: Any = {
    "font.size": 10,
    "svg.fonttype": "path",  # outlines of letters look the same everywhere
    "svg.hashsalt": "report",  # the same figure gives the same bytes
    "text.parse_math": False,  # a dollar sign in an arm's label is a dollar sign
}
_MOST_RIBBONS = 5
_SEEDS = "Thick lines are means over seeds, thin lines are single seeds, and ribbons are ± 1 standard deviation."


@dataclass(frozen=True)
class Drawing:
    """One figure. `alternative` says what it shows in words, for screen readers."""

    title: str
    caption: str
    svg: str = field(repr=False)
    alternative: str

    def data_uri(self) -> str:
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode('ascii')}"

    def _repr_html_(self) -> str:
        words = f"<b>{escape(self.title)}.</b> {escape(self.caption)}"
        image = f'<img src="{self.data_uri()}" alt="{escape(self.alternative)}">'
        return f"<figure>{image}<figcaption>{words}</figcaption></figure>"


_Lines = Mapping[str, Sequence[pd.DataFrame]]
"""For each arm a table per seed, with `x` and `y` by update."""

_BY_UPDATE = {
    "k": ("K by update", "horizon/k", 1, "K (steps)",
          "The controller's K in each update. Tasks that have a K of their own may have another."),
    "tokens": ("Tokens per update", "tokens/update", 5, "tokens per update",
               "The tokens of all episodes of an update: prompts, observations, actions, each counted once. Mean of 5 "
               "updates."),
    "lengths": ("Lengths of the successes", "rollout/length_success_mean", 5, "steps, mean of the successes",
                "The mean number of steps of the successful training episodes. Mean of 5 updates. "
                "(In the paper, at step 100: 18.14 on AppWorld, 11.93 on BFCL.)"),  # Table "Quantile statistics"
}  # fmt: skip
"""For each figure of a metric by update: title, metric, number of updates to average over, axis, caption."""


@matplotlib.rc_context(_STYLE)
def draw_suite(suite: Suite, table: SuiteTable) -> list[Drawing]:
    by_arm = {arm.label: [run for run in arm.runs if len(run.rows)] for arm in suite.arms}
    runs = {label: some for label, some in by_arm.items() if some}
    drawn = []
    for name in suite_file(suite.name).figures if runs else ():
        if name == "saturation":
            drawn.append(_over_k(suite, table))
        elif name in _BY_UPDATE:
            drawn.append(_by_update(name, runs))
        else:
            drawn.append(_success(runs, by_tokens=name == "success by tokens", held_out=suite.held_out))
    return drawn


def _success(runs: Mapping[str, Sequence[SweptRun]], *, by_tokens: bool, held_out: bool) -> Drawing:
    what = "held-out episodes at K = k_max"
    if not held_out:
        what = "training episodes at the K of that time, as the mean of 5 updates"
    names = {"tokens" if by_tokens else "updates": "x", "success": "y"}
    lines = {}
    for label, some in runs.items():
        curves = [success_curve(run, held_out=held_out) for run in some]
        lines[label] = [curve.set_index("updates", drop=False).rename(columns=names) for curve in curves]
    figure, axes = _panel("training tokens so far" if by_tokens else "updates so far", "success", percent=True)
    words = _draw_lines(axes, lines, 100, " %")
    if by_tokens:
        axes.set_xlim(left=0)  # after the lines: it ends the scaling of the axis
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    caption = f"The share of successes among {what}.{_seeds(lines)}"
    return _drawing(f"Success by {'tokens' if by_tokens else 'update'}", caption, figure, words)


def _by_update(name: str, runs: Mapping[str, Sequence[SweptRun]]) -> Drawing:
    title, metric, updates, axis, caption = _BY_UPDATE[name]
    lines = {}
    for label, some in runs.items():
        means = [run.metric(metric).rolling(updates, min_periods=1).mean() for run in some]
        lines[label] = [pd.DataFrame({"x": y.index, "y": y}) for y in means]
    figure, axes = _panel("updates so far", axis)
    words = _draw_lines(axes, lines, 1, "")
    axes.set_ylim(bottom=0)
    return _drawing(title, f"{caption}{_seeds(lines)}", figure, words)


def _seeds(lines: _Lines) -> str:
    return f" {_SEEDS}" * any(len(curves) > 1 for curves in lines.values())


def _draw_lines(axes: Axes, lines: _Lines, scale: float, unit: str) -> str:
    words = []
    for i, (label, curves) in enumerate(lines.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        points = pd.concat(curves).groupby(level=0)
        at, mean, std = points["x"].mean(), points["y"].mean(), points["y"].std()
        for curve in curves if len(curves) > 1 else ():
            axes.plot(curve["x"], curve["y"], color=colour, linewidth=0.6, alpha=0.3)
        (thick,) = axes.plot(at, mean, _MARKERS[i % len(_MARKERS)], color=colour, linewidth=1.8, label=label)
        thick.set(linestyle=_STYLES[(i + i // len(_COLOURS)) % len(_STYLES)], markersize=4.5)
        thick.set_markevery((min(i, max(0, len(at) - 1)), max(1, math.ceil(len(at) / 8))))
        if len(lines) <= _MOST_RIBBONS:
            axes.fill_between(at, mean - std, mean + std, color=colour, alpha=0.12, linewidth=0)
        ends = [f"{scale * value:,.1f}{unit}" for value in mean.iloc[[0, -1]]] if len(mean) else []
        words.append(f"{label}: from {' to '.join(ends)}" if ends else f"{label}: not recorded")
    return "; ".join(words) + "."


def _over_k(suite: Suite, table: SuiteTable) -> Drawing:
    figure, axes = _panel("K of the training (steps)", "success after training", percent=True)
    arms = {arm.label: arm.fixed_k for arm in suite.arms if arm.fixed_k is not None}
    ks, plateau, words = sorted(arms.values()), table.plateau, []
    caption = "The held-out success of models that were trained under a fixed K."
    if table.runs.max() > 1:
        caption += " Bars are ± 1 standard deviation over seeds."
    if plateau is not None:
        band = str(plateau.low) if plateau.low == plateau.high else f"{plateau.low} to {plateau.high}"
        # The edges lie halfway to the next K, which makes a band of one K visible.
        below = max((k for k in ks if k < plateau.low), default=plateau.low - 2)
        above = min((k for k in ks if k > plateau.high), default=plateau.high + 4)
        edges = ((plateau.low + below) / 2, (plateau.high + above) / 2)
        axes.axvspan(*edges, color=_BAND, alpha=0.35, linewidth=0, label=f"plateau, K = {band}")
        caption += f" The plateau is K = {band}."
    for key, label, look, colour in (
        ("success_at_k", "success at its own K, held-out", "o-", _COLOURS[0]),
        ("mean_at_k", "mean@k, at K = k_max", "s--", _GREY),
    ):
        spreads = table.spreads[key].loc[list(arms)].set_axis(list(arms.values())).dropna(subset=["mean"]).sort_index()
        axes.errorbar(
            spreads.index, spreads["mean"], spreads["std"].fillna(0.0), fmt=look, color=colour, capsize=3, label=label
        )
        shown = [f"K={k}: {100 * mean:.1f} %" for k, mean in spreads["mean"].items()]
        words.append(f"{label}: {'; '.join(shown)}.")
    axes.set_xticks(ks)
    return _drawing("Success over the training K", caption, figure, " ".join(words))


@matplotlib.rc_context(_STYLE)
def draw_evaluation_curves(evaluations: Sequence[KeptEvaluation]) -> list[Drawing]:
    return [drawing for kept in evaluations for drawing in _curve(kept.title, kept.episodes)]


def _curve(name: str, episodes: Path) -> list[Drawing]:
    curve = saturation(read_episodes(episodes))
    if curve is None:
        return []
    ks = range(1, curve.k_max + 1)
    figure, axes = _panel("K (steps)", "success", percent=True)
    axes.fill_between(ks, curve.low, curve.high, color=_COLOURS[0], alpha=0.15, linewidth=0)
    axes.plot(ks, curve.success, color=_COLOURS[0], linewidth=1.8, label="success within K steps")
    if any(curve.tokens):
        cost = axes.twinx()
        (line,) = cost.plot(ks, curve.tokens, color=_COLOURS[1], linewidth=1.5, linestyle="--")
        axes.plot([], [], color=line.get_color(), linestyle="--", label="tokens of an episode (right)")
        cost.set_ylim(bottom=0)
        cost.yaxis.set_major_formatter(EngFormatter(sep=""))
        cost.spines["top"].set_visible(False)
    for k, style, what in ((curve.knee, ":", "to deploy, K ="), (curve.k0, "-", "to train (P90 + 10), --k0")):
        if k is not None and k <= curve.k_max:
            axes.axvline(k, color=_GREY, linewidth=1, linestyle=style, label=f"{what} {k}")
    words = "; ".join(
        f"K = {k}: {100 * curve.success[k - 1]:.1f} %" for k in sorted({curve.knee or curve.k_max, curve.k_max})
    )
    caption = "All episodes of this evaluation. The ribbon is the 95 % interval of each K by itself. "
    caption += f"Which K: {curve.advice}."
    title = f"Success and cost under each K: {name}"
    return [_drawing(title, caption, figure, f"Success within K steps, by K. {words}.")]


def _panel(x: str, y: str, *, percent: bool = False) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, 3.7), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    if percent:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    return figure, axes


def _drawing(title: str, caption: str, figure: Figure, alternative: str) -> Drawing:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = 3 if longest <= 16 else 2 if longest <= 28 else 1
    wrapped = [textwrap.fill(label, 56) for label in labels]
    figure.legend(handles, wrapped, loc="outside lower center", ncols=columns, fontsize=9, frameon=False)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return Drawing(title, caption, out.getvalue(), alternative)
