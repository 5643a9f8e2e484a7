"""Helpers for the examples' figures: panels, a line with a band for several runs, and files that can be reproduced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish, also in grey print.
BLUE, ORANGE, GREEN, PURPLE, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"

Log = list[dict[str, float]]
"""A run's metrics, a row for each update."""
Logs = dict[tuple[str, int], list[Log]]
"""For each environment and K0 the logs of its runs."""


@dataclass(frozen=True)
class Runs:
    """The settings that runs under GRPO share."""

    k0: tuple[int, ...] = (10, 50)
    """The values of K at the start, with one run for each."""
    seeds: int = 1
    """The number of runs for each environment and K0."""
    tasks_per_update: int = 8
    """The number of groups in an update."""
    group_size: int = 8
    """The number of episodes in a group."""
    min_successes: int = 20
    """The number of remembered successes from which on K moves."""
    out: Path | None = None
    """The file for the figure."""


def train_all(train: Callable[[str, int, int], Log], envs: Iterable[str], k0s: Sequence[int], seeds: int) -> Logs:
    """Trains a run for each environment, seed and K0 with `train(env, k0, seed)`, and prints how each ended."""
    logs: Logs = {}
    for env, seed, k0 in itertools.product(envs, range(seeds), k0s):
        log = train(env, k0, seed)
        logs.setdefault((env, k0), []).append(log)
        first, last = (np.mean([row["rollout/success"] for row in part]) for part in (log[:5], log[-5:]))
        k = log[-1]["horizon/k"]
        print(f"{env} K0={k0} seed={seed}: K = {k:.1f}, success {first:.2f} -> {last:.2f}", flush=True)
    return logs


def panels(count: int, columns: int = 1, *, title: str) -> tuple[Figure, np.ndarray]:
    """Returns a figure with `count` rows, and its axes as an array of shape [count, columns]."""
    figure = Figure(figsize=(1.2 + 5.2 * columns, 0.8 + 2.1 * count), layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots(count, columns, squeeze=False, sharex="col")
    for one in axes.flat:
        one.grid(alpha=0.25, linewidth=0.5)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def band(
    axes: Axes, x: Sequence[float], runs: Sequence[Sequence[float]], label: str, color: str, **style: object
) -> None:
    """Draws the mean of several runs over the same x, and a band from the lowest run to the highest."""
    values = np.array(runs, dtype=float)
    axes.plot(x, values.mean(axis=0), label=label, color=color, linewidth=1.5, **style)
    if len(values) > 1:
        axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=color, alpha=0.15, linewidth=0)


def save(figure: Figure, path: Path) -> None:
    """Writes the figure. The same runs always give the same SVG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "elastic-horizon"}):
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def smooth(values: Sequence[float], width: int) -> np.ndarray:
    """Returns at each place the mean of the last `width` values, or of fewer at the start."""
    return np.array([np.mean(values[max(0, i - width + 1) : i + 1]) for i in range(len(values))])


def draw_k_and_success(logs: Logs, title: str, k_name: str, path: Path) -> None:
    """Draws K, whose name in the rows is `k_name`, and success by update, with one column for each environment."""
    names = list(dict.fromkeys(env for env, _ in logs))
    figure, axes = panels(2, len(names), title=title)
    for (env, k0), runs in logs.items():
        top, bottom = axes[:, names.index(env)]
        x, color = range(1, len(runs[0]) + 1), BLUE if k0 <= 15 else ORANGE
        band(top, x, [[row[k_name] for row in run] for run in runs], f"from K0 = {k0}", color)
        band(bottom, x, [smooth([row["rollout/success"] for row in run], 5) for run in runs], f"from K0 = {k0}", color)
        top.set_title(env, fontsize=9)
        top.set_ylim(0, 52)
        bottom.set_ylim(0, 1)
        bottom.set_xlabel("update")
    axes[0, 0].set_ylabel("K, steps")
    axes[1, 0].set_ylabel("success, mean of 5 updates")
    axes[0, 0].legend(fontsize=8, frameon=False)
    save(figure, path)
