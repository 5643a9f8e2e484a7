"""The saturation curve: success and cost over the horizon K, from episodes that were played once.

If the agent is not told K, the first k steps of an episode are what a horizon of k would have given. So one evaluation
at a large K has the whole curve that the paper draws from a sweep (RQ1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eh_gym.errors import ConfigError
from harness.evaluation.shares import shares_of
from harness.records.metrics import as_good
from harness.terminal.texts import Table


@dataclass(frozen=True)
class Saturation:
    """Success and cost if every episode had a horizon of k steps, for k from 1 to `k_max`.

    Attributes:
        success: The share of episodes that succeed within k steps.
        low: The lower end of the 95 % interval of `success`, for each k by itself.
        high: The upper end.
        tokens: The mean number of tokens of an episode.
        boundary: The 90th percentile of the steps of the successes; None without a success.
        advice: One sentence: which K to deploy and to train with, and why.
    """

    success: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    tokens: tuple[float, ...]
    boundary: float | None
    advice: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "advice", self._advice())

    @property
    def k_max(self) -> int:
        return len(self.success)

    @property
    def knee(self) -> int | None:
        """The K to deploy: the smallest k that is `as_good` as the largest; None without a success."""
        shares = enumerate(self.success, start=1)
        return next((k for k, share in shares if share > 0 and as_good(share, self.success[-1])), None)

    @property
    def k0(self) -> int | None:
        """The K to begin training with: `boundary` and the default headroom of 10; None without a success."""
        return None if self.boundary is None else int(self.boundary + 10)

    def _advice(self) -> str:
        if self.knee is None:
            return f"no episode succeeded within K = {self.k_max}, so no K can be chosen from this"
        why = f", the smallest at most 2 points below K = {self.k_max}"
        why = why if self.knee < self.k_max else " or more, since success still rises there"
        return f"to deploy: K = {self.knee}{why}; to train: --k0 {self.k0}, the P90 of the successes' steps + 10"


def saturation(episodes: Sequence[Mapping[str, Any]]) -> Saturation | None:
    """Computes the curve: what an evaluation with the same seeds gives under each K up to the one that was played.

    Without episodes there is no curve.

    Args:
        episodes: The lines of one evaluation in the log, in any order. Those whose environment failed are left out.
    """
    episodes = [line for line in episodes if line["end"] != "environment-error"]
    if not episodes:
        return None
    horizons = {line["horizon"] for line in episodes}
    if len(horizons) > 1 or min(horizons) < 1:
        raise ConfigError(
            f"the saturation curve needs episodes of one horizon, got {sorted(horizons)}; play them with a fixed K"
        )
    costs = [_tokens_of_steps(line) for line in episodes]
    success, intervals, tokens = [], [], []
    for k in range(1, horizons.pop() + 1):
        played = zip(episodes, costs, strict=True)
        shares = shares_of([{**line, "success": line["success"] and len(cost) <= k} for line, cost in played])
        success.append(shares.mean_at_k)
        intervals.append(shares.mean_interval)
        tokens.append(float(np.mean([sum(cost[:k]) for cost in costs])))
    solved_in = [len(cost) for line, cost in zip(episodes, costs, strict=True) if line["success"]]
    boundary = float(np.percentile(solved_in, 90)) if solved_in else None
    low, high = zip(*intervals, strict=True)
    return Saturation(tuple(success), low, high, tuple(tokens), boundary)


def _tokens_of_steps(line: Mapping[str, Any]) -> list[int]:
    """The tokens that each step of an episode added, read and written. The first step includes the prompt."""
    tokens, read = [], line["prompt_tokens"]
    for turn in line["turns"]:
        tokens.append(read + sum(turn.get(name, 0) for name in ("prompt_tokens", "action_tokens")))
        read = turn.get("observation_tokens", 0)
    return tokens


def saturation_table(curve: Saturation) -> Table:
    step = max(1, round(curve.k_max / 10))
    marks: dict[int, list[str]] = {}
    for k, mark in ((curve.knee, "to deploy"), (curve.k0, "to train (P90 + 10)"), (curve.k_max, "this evaluation")):
        if k is not None and k <= curve.k_max:
            marks.setdefault(k, []).append(mark)
    rows = []
    for k in sorted({*range(step, curve.k_max + 1, step), *marks}):
        interval = f"{100 * curve.low[k - 1]:.1f} to {100 * curve.high[k - 1]:.1f}"
        tokens = f"{curve.tokens[k - 1]:,.0f}" if curve.tokens[-1] else "-"
        rows.append((str(k), f"{100 * curve.success[k - 1]:.1f} %", interval, tokens, ", ".join(marks.get(k, ()))))
    return Table("the same episodes under a smaller K", ("K", "success", "95 % interval", "tokens", ""), rows)
