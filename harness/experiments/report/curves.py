"""Draws the saturation curve of an evaluation, and of the last updates of a training run, from their logged episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import EngFormatter, MaxNLocator

from harness.evaluation.folder import KeptEvaluation
from harness.evaluation.saturation import Saturation, saturation, steps_of_line
from harness.experiments.report.drawing import BLUE, GREY, ORANGE, Drawing, drawing_style, legend, panel, svg
from harness.experiments.report.runs import StoredArm, Suite
from harness.run.episode_log import read_episodes

__all__ = ["draw_arm_curves", "draw_evaluation_curves"]

_MOST_ARMS = 6
_LAST = 0.25  # of the updates


def draw_evaluation_curves(evaluations: Sequence[KeptEvaluation]) -> list[Drawing]:
    """Draws the curve of each evaluation whose agent was not told K."""
    found = [
        (kept, _curve(read_episodes(kept.episodes))) for kept in evaluations if not kept.settings.get("budget_hint")
    ]
    return [_draw(_name(kept), curve, "All episodes of this evaluation") for kept, curve in found if curve is not None]


def draw_arm_curves(suite: Suite) -> list[Drawing]:
    """Draws the curves of runs that were named one by one, if they have few arms and their agents were not told K."""
    arms = [arm for arm in suite.arms if not any(run.config.get("budget_hint") for run in arm.runs)]
    if suite.name != "runs" or len(arms) > _MOST_ARMS:
        return []
    drawn = []
    for arm in arms:
        curve = _curve(line for path in _last_updates(arm) for line in read_episodes(path))
        if curve is not None:
            drawn.append(
                _draw(
                    arm.label, curve, "The logged training episodes of the last quarter of the updates, taken as alike"
                )
            )
    return drawn


def _last_updates(arm: StoredArm) -> list[Path]:
    """The episode files of the last quarter of each run's updates."""
    files = []
    for run in arm.runs:
        first = (1 - _LAST) * len(run.rows)
        files += [path for path in run.episodes if int(path.stem.removeprefix("update-")) >= first]
    return files


def _curve(lines: Iterable[Mapping[str, Any]]) -> Saturation | None:
    counted = (line for line in lines if line["end"] != "environment-error" and line["horizon"])
    return saturation(map(steps_of_line, counted))


def _name(kept: KeptEvaluation) -> str:
    get = kept.settings.get
    return f"{get('model') or get('policy')} on {get('env')}, {get('split')}"


@drawing_style()
def _draw(name: str, curve: Saturation, about: str) -> Drawing:
    ks = range(1, curve.k_max + 1)
    figure, axes = panel()
    axes.fill_between(ks, curve.low, curve.high, color=BLUE, alpha=0.15, linewidth=0)
    axes.plot(ks, curve.success, color=BLUE, linewidth=1.8, label="success within K steps")
    if any(curve.tokens):
        cost = axes.twinx()
        cost.plot(ks, curve.tokens, color=ORANGE, linewidth=1.5, linestyle="--")
        axes.plot([], [], color=ORANGE, linewidth=1.5, linestyle="--", label="tokens of an episode (right)")
        cost.set_ylim(bottom=0)
        cost.yaxis.set_major_formatter(EngFormatter(sep=""))
        cost.spines["top"].set_visible(False)
    axes.axvline(curve.knee, color=GREY, linewidth=1, linestyle=":", label=f"2 points below at most, K = {curve.knee}")
    if curve.boundary is not None and curve.boundary + 10 <= curve.k_max:
        axes.axvline(curve.boundary + 10, color=GREY, linewidth=1, label=f"P90 + 10, K = {int(curve.boundary + 10)}")
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel("K (steps)")
    axes.set_ylabel("success")
    legend(axes)
    picture = svg(figure)
    points = "; ".join(f"K = {k}: {100 * curve.success[k - 1]:.1f} %" for k in sorted({curve.knee, curve.k_max}))
    return Drawing(
        f"Success and cost under each K: {name}",
        f"{about}. The ribbon is the 95 % interval of each K by itself.",
        picture,
        f"Success within K steps, by K. {points}.",
    )
