"""The result of an evaluation: mean@k and best@k with 95 % intervals, and lengths; computed from episodes, or as a table.

`harness.evaluation.play` plays the episodes, and `harness.evaluation.folder` keeps them.
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
    """The parts of an episode that a result needs. A `Trajectory` has them, and so has `PlayedBefore`."""

    @property
    def group(self) -> int:
        """The index of its task."""

    @property
    def success(self) -> bool:
        """The environment's verdict."""

    @property
    def length(self) -> int:
        """The number of steps."""

    @property
    def end(self) -> str:
        """The reason why it ended."""

    @property
    def truncated(self) -> bool:
        """Whether K, the environment's own limit or the context stopped it."""

    @property
    def optimal_steps(self) -> int | None:
        """The number of steps that the expert takes; None if it is not known."""

    @property
    def tokens(self) -> int:
        """The number of tokens in prompts and actions."""


@dataclass(frozen=True)
class EvalResult:
    """The result of an evaluation.

    Attributes:
        tasks: The number of tasks with an episode that counts.
        rollouts: The number of episodes per task, the k.
        episodes: The number of episodes that count: all except those that were lost because their environment failed.
        successes: The number of successful episodes.
        mean_at_k: The share of successful episodes.
        mean_interval: The 95 % interval of `mean_at_k`.
        best_at_k: The share of tasks that were solved at least once.
        best_interval: The 95 % interval of `best_at_k`.
        length_mean: The mean number of steps of all episodes.
        length_success_mean: The mean number of steps of the successes; None without a success.
        length_success_p90: The 90th percentile of the steps of the successes; None without a success.
        success_lengths: The number of steps of each success, ascending. The success under a shorter horizon follows from it.
        steps_per_optimum: The mean of steps / the expert's steps, over the successes whose expert length is known; None if
            there are none.
        by_optimum: For each known number of expert steps, ascending: that number, the number of episodes, and the number of
            successes.
        truncated: The share of episodes that K, the environment's own limit or the context stopped.
        environment_errors: The number of episodes that were lost because their environment failed. No other field counts
            them.
        tokens: The number of tokens in prompts and actions; 0 with an endpoint, which gives no tokens.
        usage: What an endpoint says it has served; None without an endpoint. It covers only this process, not an earlier one
            that was stopped, although the result has the episodes of both.
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
    """Returns Wilson's 95 % score interval of a share `p` in `n` independent trials. It has a width even at 0 and 1.

    >>> [round(x, 3) for x in wilson_interval(1.0, 100)]
    [0.963, 1.0]
    """
    if n <= 0:
        return 0.0, 1.0
    centre, spread = p + _Z**2 / (2 * n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def summarise(episodes: Sequence[Played]) -> EvalResult:
    """Computes the result of episodes that are grouped by task.

    The k episodes of one task are alike, so the interval of mean@k cannot treat them as independent. It takes the variance of
    the share between tasks, and the number of independent episodes that would have this variance (the design effect).

    Raises:
        ConfigError: Every episode ended with an environment error.
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
    """Returns the result as a table to print."""
    table = Table(title=title, title_justify="left", show_header=False)

    def share(p: float, interval: tuple[float, float]) -> str:
        return f"{100 * p:.1f} %  (95 %: {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"

    table.add_row("successes", f"{result.successes}/{result.episodes}")
    table.add_row(f"mean@{result.rollouts}", share(result.mean_at_k, result.mean_interval))
    table.add_row(f"best@{result.rollouts}", share(result.best_at_k, result.best_interval))
    table.add_row("steps, all / successes / P90", _lengths(result))
    if result.steps_per_optimum is not None:
        table.add_row("steps / the expert's", f"{result.steps_per_optimum:.2f}")
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
