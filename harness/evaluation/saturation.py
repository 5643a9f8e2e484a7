"""The saturation curve: success and cost over the horizon K, from episodes that were played once.

An episode that was played with K steps shows what every smaller k would have given: its first k steps. This holds if the agent is
not told K. So one evaluation at a large K has the whole curve that the paper draws from a sweep (RQ1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from eh_gym.errors import ConfigError
from harness.evaluation.intervals import effective_episodes, wilson_interval

__all__ = ["PlayedSteps", "Saturation", "saturation", "saturation_table", "steps_of_line"]

_TOLERANCE = 0.02
_LEAST = 20  # episodes


@dataclass(frozen=True)
class PlayedSteps:
    """What the curve needs of an episode.

    Attributes:
        task: The task.
        horizon: The K of the episode, in steps.
        length: The number of steps that were taken.
        success: The environment's verdict.
        cut: Whether K stopped it. What stopped it otherwise would also have stopped it under a larger K.
        tokens: For each step, the tokens that it added: what the model read for it and wrote in it. The first has the prompt.
    """

    task: str
    horizon: int
    length: int
    success: bool
    cut: bool
    tokens: Sequence[int]


@dataclass(frozen=True)
class Saturation:
    """Success and cost if every episode had a horizon of k steps, for k from 1 to `k_max`.

    Attributes:
        success: The share of episodes that succeed within k steps.
        low: The lower end of the 95 % interval of `success`, for each k by itself.
        high: The upper end.
        tokens: The mean number of tokens of an episode.
        episodes: The number of episodes whose own K was at least k.
        boundary: The 90th percentile of the steps of the successes; None without a success.
    """

    success: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    tokens: tuple[float, ...]
    episodes: tuple[int, ...]
    boundary: float | None

    @property
    def k_max(self) -> int:
        """The largest k."""
        return len(self.success)

    @property
    def knee(self) -> int:
        """The smallest k whose success is at most 2 points below that of the largest k."""
        return 1 + next(i for i, share in enumerate(self.success) if share >= self.success[-1] - _TOLERANCE - 1e-12)


def steps_of_line(line: Mapping[str, Any]) -> PlayedSteps:
    """What the curve needs of an episode, from its line in the episode log."""
    tokens, read = [], line["prompt_tokens"]
    for turn in line["turns"]:
        tokens.append(read + sum(turn.get(name, 0) for name in ("prompt_tokens", "action_tokens")))
        read = turn.get("observation_tokens", 0)
    cut = line["end"] == "horizon"
    return PlayedSteps(line["task_id"], line["horizon"], len(tokens), line["success"], cut, tokens)


def saturation(episodes: Iterable[PlayedSteps]) -> Saturation | None:
    """Computes the curve up to the largest k that at least 20 episodes (or all) were given.

    If all episodes had the same K, the values are shares and means over all of them: what a sweep with the same seeds gives. In a
    training run, K differs. What an episode that its K cut off would have done later is then taken from those that had a larger K
    (Kaplan and Meier 1958). An episode that failed by the task's rules stays in the count up to its own K, as in the cumulative
    incidence of Fine and Gray (1999). This assumes that K was chosen without regard to the episode's own course, which holds in
    training: K is fixed at the reset. It also takes the episodes as alike, although the policy changes from update to update, and
    a `KeyedHorizon` or `TaskHorizon` gives hard tasks other K than easy ones; so use few updates, and mistrust it with those two.

    The interval is Wilson's, for as many independent episodes as vary like those whose K was at least k; see
    `harness.evaluation.result.summarise`.

    Args:
        episodes: Without those that were lost because their environment failed. There is no order.

    Returns:
        The curve; None if there is no episode.

    Raises:
        ConfigError: An episode had no limit.
    """
    played = list(episodes)
    if not played:
        return None
    if any(e.horizon < 1 for e in played):
        raise ConfigError(
            "the saturation curve needs episodes with a horizon, got some without a limit; play them with a K"
        )
    horizons, lengths = np.array([e.horizon for e in played]), np.array([e.length for e in played])
    successes, cuts = np.array([e.success for e in played]), np.array([e.cut for e in played])
    k_max = int(np.sort(horizons)[-min(_LEAST, len(played))])
    success, low, high, tokens, counts = [], [], [], [], []
    no_success_yet = running = 1.0
    cost = 0.0
    for k in range(1, k_max + 1):
        given = horizons >= k
        at_risk = np.sum(given & ~(successes & (lengths < k)))
        no_success_yet *= 1 - np.sum(successes & (lengths == k)) / at_risk if at_risk else 1.0
        share = float(1 - no_success_yet)
        active = lengths >= k
        if active.any():
            cost += running * float(np.mean([e.tokens[k - 1] for e in played if e.length >= k]))
            running *= 1 - float(np.sum((lengths == k) & ~cuts) / np.sum(active))
        by_task: dict[str, list[bool]] = {}
        for e in played:
            if e.horizon >= k:
                by_task.setdefault(e.task, []).append(e.success and e.length <= k)
        interval = wilson_interval(share, effective_episodes(list(by_task.values())))
        success.append(share)
        low.append(interval[0])
        high.append(interval[1])
        tokens.append(cost)
        counts.append(int(np.sum(given)))
    found = lengths[successes]
    boundary = float(np.percentile(found, 90)) if len(found) else None
    return Saturation(tuple(success), tuple(low), tuple(high), tuple(tokens), tuple(counts), boundary)


def saturation_table(curve: Saturation) -> Table:
    """Returns about ten points of the curve, the knee and the K of the elastic horizon as a table to print."""
    step = max(1, round(curve.k_max / 10))
    marks = {curve.knee: ["2 points below at most"]}
    if curve.boundary is not None and (frontier := int(curve.boundary + 10)) <= curve.k_max:
        marks.setdefault(frontier, []).append("P90 + 10")
    marks.setdefault(curve.k_max, []).append("this evaluation")
    table = Table(title="the same episodes under a smaller K", title_justify="left")
    for name in ("K", "success", "95 % interval", "tokens", ""):
        table.add_column(name)
    for k in sorted({*range(step, curve.k_max + 1, step), *marks}):
        interval = f"{100 * curve.low[k - 1]:.1f} to {100 * curve.high[k - 1]:.1f}"
        tokens = f"{curve.tokens[k - 1]:,.0f}" if curve.tokens[-1] else "-"
        table.add_row(str(k), f"{100 * curve.success[k - 1]:.1f} %", interval, tokens, ", ".join(marks.get(k, ())))
    return table
