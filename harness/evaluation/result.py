"""What an evaluation found: mean@k, best@k, their 95 % intervals, lengths; from episodes, and as a table to read.

Left out: who played the episodes, and where they are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from rich.table import Table

from eh_gym.errors import ConfigError
from harness.rollout.endpoint import Usage

__all__ = ["EvalResult", "Played", "result_table", "summarise", "wilson_interval"]

_Z = 1.959964  # two-sided 95 %


class Played(Protocol):
    """What is asked of an episode: a `Trajectory` has it, and so has a line of an episode log."""

    @property
    def group(self) -> int:
        """Index of its task."""

    @property
    def success(self) -> bool:
        """The environment's verdict."""

    @property
    def length(self) -> int:
        """Steps taken."""

    @property
    def end(self) -> str:
        """Why it ended."""

    @property
    def truncated(self) -> bool:
        """Whether K, the environment's own limit or the context stopped it."""

    @property
    def optimal_steps(self) -> int | None:
        """How many the expert takes, where it is known."""

    @property
    def tokens(self) -> int:
        """All of them, prompts and actions."""


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation found.

    Attributes:
        tasks: Number of tasks with an episode that counts.
        rollouts: Episodes per task, the k.
        episodes: That count: all but those lost to a failing environment.
        successes: Successful episodes.
        mean_at_k: Share of successful episodes.
        mean_interval: Its 95 % interval.
        best_at_k: Share of tasks solved at least once.
        best_interval: Its 95 % interval.
        length_mean: Mean steps of all episodes.
        length_success_mean: Mean steps of the successes; None without one.
        length_success_p90: Their 90th percentile; None without one.
        success_lengths: The steps of each success, ascending; what a shorter horizon would have given follows from them.
        steps_per_optimum: Mean of steps over the expert's, of the successes where these are known; else None.
        by_optimum: For each number of steps of the expert, ascending, where it is known: that number, the episodes and the
            successes.
        truncated: Share of episodes stopped by K or the context.
        environment_errors: Episodes lost to a failing environment; they are in no other figure.
        tokens: All tokens of the episodes, prompts and actions; 0 with an endpoint, which gives no tokens.
        usage: What an endpoint has served, as it counts; None without one. What it served to a process that was stopped
            before, whose episodes are among these, is not in it.
    """

    tasks: int
    rollouts: int
    episodes: int
    successes: int
    mean_at_k: float
    mean_interval: tuple[float, float]
    best_at_k: float
    best_interval: tuple[float, float]
    length_mean: float
    length_success_mean: float | None
    length_success_p90: float | None
    success_lengths: tuple[int, ...]
    steps_per_optimum: float | None
    by_optimum: tuple[tuple[int, int, int], ...]
    truncated: float
    environment_errors: int
    tokens: int
    usage: Usage | None = None


def wilson_interval(p: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share `p` seen in `n` independent trials; never empty at 0 or 1.

    >>> [round(x, 3) for x in wilson_interval(1.0, 100)]
    [0.963, 1.0]
    """
    if n <= 0:
        return 0.0, 1.0
    centre, spread = p + _Z**2 / (2 * n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def summarise(episodes: Sequence[Played]) -> EvalResult:
    """Turns episodes, grouped by task, into figures.

    The interval of mean@k counts tasks, not episodes: the k episodes of a task are alike, so the share's variance is
    taken between tasks and turned into the number of independent episodes that would have it (the design effect).
    """
    valid = [t for t in episodes if t.end != "environment-error"]
    by_task: dict[int, list[bool]] = {}
    for t in sorted(valid, key=lambda t: t.group):
        by_task.setdefault(t.group, []).append(t.success)
    if not by_task:
        raise ConfigError("every episode ended with an environment error; see the episodes' own errors")
    task_means = np.array([np.mean(s) for s in by_task.values()])
    mean, best = float(np.mean([t.success for t in valid])), float(np.mean([any(s) for s in by_task.values()]))
    n = len(task_means)
    variance = float(task_means.var(ddof=1)) / n if n > 1 else 0.0
    effective = mean * (1 - mean) / variance if variance > 0 else n
    lengths = np.array([t.length for t in valid if t.success], dtype=float)
    over = [t.length / t.optimal_steps for t in valid if t.success and t.optimal_steps]
    return EvalResult(
        tasks=n,
        rollouts=max(len(s) for s in by_task.values()),
        episodes=len(valid),
        successes=sum(t.success for t in valid),
        mean_at_k=mean,
        mean_interval=wilson_interval(mean, min(effective, len(valid))),
        best_at_k=best,
        best_interval=wilson_interval(best, n),
        length_mean=float(np.mean([t.length for t in valid])),
        length_success_mean=float(lengths.mean()) if len(lengths) else None,
        length_success_p90=float(np.percentile(lengths, 90)) if len(lengths) else None,
        success_lengths=tuple(sorted(t.length for t in valid if t.success)),
        steps_per_optimum=float(np.mean(over)) if over else None,
        by_optimum=_by_optimum(valid),
        truncated=float(np.mean([t.truncated for t in valid])),
        environment_errors=len(episodes) - len(valid),
        tokens=sum(t.tokens for t in valid),
    )


def _by_optimum(episodes: Sequence[Played]) -> tuple[tuple[int, int, int], ...]:
    known: dict[int, list[bool]] = {}
    for t in episodes:
        if t.optimal_steps:
            known.setdefault(int(t.optimal_steps), []).append(t.success)
    return tuple((steps, len(known[steps]), sum(known[steps])) for steps in sorted(known))


def result_table(title: str, result: EvalResult) -> Table:
    """The result as a person reads it."""
    table = Table(title=title, title_justify="left", show_header=False)

    def share(p: float, interval: tuple[float, float]) -> str:
        return f"{100 * p:.1f} %  (95 %: {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"

    table.add_row("successes", f"{result.successes}/{result.episodes}")
    table.add_row(f"mean@{result.rollouts}", share(result.mean_at_k, result.mean_interval))
    table.add_row(f"best@{result.rollouts}", share(result.best_at_k, result.best_interval))
    table.add_row("steps, all / successes / P90", _lengths(result))
    if result.steps_per_optimum is not None:
        table.add_row("steps over the expert's", f"{result.steps_per_optimum:.2f}")
    table.add_row("stopped by K or context", f"{100 * result.truncated:.1f} %")
    if result.environment_errors:
        table.add_row("lost to environment errors", str(result.environment_errors))
    if result.usage is not None:
        table.add_row("requests", str(result.usage.requests))
        table.add_row("tokens, prompt / completion", f"{result.usage.prompt_tokens} / {result.usage.completion_tokens}")
    return table


def _lengths(result: EvalResult) -> str:
    if result.length_success_mean is None or result.length_success_p90 is None:
        return f"{result.length_mean:.1f} / - / -"
    return f"{result.length_mean:.1f} / {result.length_success_mean:.1f} / {result.length_success_p90:.1f}"
