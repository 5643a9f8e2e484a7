"""The saturation curve: success and cost over the horizon K, from episodes that were played once.

If the agent is not told K, the first k steps of an episode are what a horizon of k would have given. So one evaluation
at a large K has the whole curve that the paper draws from a sweep (RQ1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from eh_gym import ElasticHorizon
from eh_gym.errors import ConfigError
from harness.evaluation.intervals import effective_episodes, wilson_interval
from harness.evaluation.shares import by_task, valid_of
from harness.records.metrics import TOLERANCE, as_good
from harness.terminal.texts import Table

_ENOUGH = next(n for n in count(1) if wilson_interval(0.0, n)[1] <= TOLERANCE)  # tasks, if none loses a success


@dataclass(frozen=True)
class Saturation:
    """Success and cost if every episode had a horizon of k steps, for k from 1 to `k_max`.

    Attributes:
        success: The share of episodes that succeed within k steps.
        low: The lower end of the 95 % interval of `success`, for each k by itself.
        high: The upper end.
        lost: The 95 % interval of the share of the same episodes that succeed within `k_max` steps, but not within k.
        tokens: The mean number of tokens of an episode.
        boundary: The 90th percentile of the steps of the successes; None without a success.
        knee: The K to deploy: the smallest k for which `lost` ends below 2 points; None without a success.
        k0: The K to begin training with: `boundary` and the default headroom; None with too few successes.
        advice: One sentence: which K to deploy and to train with, and from what.
    """

    success: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    lost: tuple[tuple[float, float], ...]
    tokens: tuple[float, ...]
    boundary: float | None
    knee: int | None
    k0: int | None
    advice: str

    @property
    def k_max(self) -> int:
        return len(self.success)


def saturation(episodes: Sequence[Mapping[str, Any]]) -> Saturation | None:
    """Computes the curve: what an evaluation with the same seeds gives under each K up to the one that was played.

    `episodes` are the lines of one evaluation in the log, in any order. Those whose environment failed are left out;
    without others there is no curve.
    """
    episodes = valid_of(episodes)
    if not episodes:
        return None
    horizons = {line["horizon"] for line in episodes}
    if len(horizons) > 1 or min(horizons) < 1:
        raise ConfigError(
            f"the saturation curve needs episodes of one horizon, got {sorted(horizons)}; play them with a fixed K"
        )
    costs = [_tokens_of_steps(line) for line in episodes]
    needed = [[len(line["turns"]) if line["success"] else np.inf for line in task] for task in by_task(episodes)]
    return curve_of(needed, [float(np.mean([sum(cost[:k]) for cost in costs])) for k in range(1, horizons.pop() + 1)])


def curve_of(needed: Sequence[Sequence[float]], tokens: Sequence[float]) -> Saturation:
    """Computes the curve from the steps that each task's episodes needed to succeed, infinity for a failure.

    `tokens` has the mean of an episode under each k, [k_max]. What a k loses is the paired difference of the same
    episodes. A larger k loses no more, so the bound of one k holds for those above it.
    """
    ks, played = range(1, len(tokens) + 1), np.array([len(task) for task in needed])
    within = np.concatenate(needed) <= np.array(ks)[:, np.newaxis]
    won = np.add.reduceat(within, np.cumsum(played) - played, axis=1, dtype=int)  # [k_max, tasks]
    success = won.sum(axis=1) / played.sum()
    low, high = zip(*(_interval(row, played) for row in won), strict=True)
    least, most = zip(*(_interval(won[-1] - row, played, rare=True) for row in won[:-1]), (0.0, 0.0), strict=True)
    lost = tuple(zip(least, np.minimum.accumulate(most).tolist(), strict=True))
    knee = next((k for k in ks if success[k - 1] > 0 and lost[k - 1][1] <= TOLERANCE), None)
    steps = [n for task in needed for n in task if n < np.inf]
    boundary = float(np.percentile(steps, 90)) if steps else None
    k0 = int(boundary + ElasticHorizon.delta) if boundary and len(steps) >= ElasticHorizon.min_successes else None
    sample = f"tasks: {len(needed)}, episodes: {played.sum()}"
    advice = f"no episode succeeded within K = {ks[-1]}, so no K can be chosen from this ({sample})"
    if knee is not None:
        k = next(k for k in ks if as_good(success[k - 1], success[-1]))
        if knee < ks[-1]:
            k, why = knee, f", the smallest surely at most 2 points below K = {ks[-1]}"
        elif k < knee:
            n = _ENOUGH if len(needed) < _ENOUGH else 2 * len(needed)
            why = f", as so few tasks can't tell it from K = {k}; give {n} or more"
        else:
            k, why = max(1, knee - 1), " or more, as success may still rise there"
        train = f"--k0 {k0}, the P90 of the steps of {len(steps)} successes + {ElasticHorizon.delta:g}"
        if k0 is None:
            train = f"too few successes for --k0, {len(steps)} of {ElasticHorizon.min_successes}"
        why += f" (K = {k}: {_points(lost[k - 1])} points below at 95 %; {sample})"
        advice = f"to deploy: K = {knee}{why}; to train: {train}"
    return Saturation(tuple(success.tolist()), low, high, lost, tuple(tokens), boundary, knee, k0, advice)


def _interval(won: np.ndarray, played: np.ndarray, *, rare: bool = False) -> tuple[float, float]:
    """A share's interval. That of a rare one, which few tasks have, is as if one more such task had been missed."""
    n, having = effective_episodes(won, played), np.count_nonzero(won)
    n = max(len(won), n * having / (having + 1)) if rare else n
    return wilson_interval(float(won.sum() / played.sum()), n)


def _tokens_of_steps(line: Mapping[str, Any]) -> list[int]:
    """The tokens that each step of an episode added, read and written. The first step includes the prompt."""
    tokens, read = [], line["prompt_tokens"]
    for turn in line["turns"]:
        tokens.append(read + sum(turn.get(name, 0) for name in ("prompt_tokens", "action_tokens")))
        read = turn.get("observation_tokens", 0)
    return tokens


def saturation_table(curve: Saturation) -> Table:
    step = max(1, round(curve.k_max / 10))
    marks = {"to deploy": curve.knee, "to train": curve.k0}
    rows = []
    for k in sorted({*range(step, curve.k_max, step), curve.k_max, *marks.values()} & {*range(1, curve.k_max + 1)}):
        success, interval = f"{100 * curve.success[k - 1]:.1f} %", _points((curve.low[k - 1], curve.high[k - 1]))
        tokens = f"{curve.tokens[k - 1]:,.0f}" if curve.tokens[-1] else "-"
        marked = ", ".join(mark for mark, at in marks.items() if at == k)
        rows.append((str(k), success, interval, _points(curve.lost[k - 1]), tokens, marked))
    headings = ("K", "success", "95 % interval", f"points below K = {curve.k_max}, 95 %", "tokens", "")
    return Table("the same episodes under a smaller K", headings, rows)


def _points(interval: tuple[float, float]) -> str:
    return "{:.1f} to {:.1f}".format(*(100 * end for end in interval))
