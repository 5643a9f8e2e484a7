"""ElasticHorizon for many runs at once: the same arithmetic, bit for bit, on arrays with a row per run.

`tests/harness/experiments/simulate/test_simulate.py` gives the same lengths to `eh_gym.ElasticHorizon` and compares every K.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from eh_gym.horizon.elastic import Rounding, Statistic
from harness.experiments.simulate.lengths import LengthLaw

__all__ = ["Runs", "elastic_runs", "fixed_points", "settling_updates", "tail", "targets"]

_LEVEL = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "max": 100.0}
_NONE = np.iinfo(np.int32).max  # an empty place of a buffer; it sorts behind all lengths


@dataclass(frozen=True)
class Runs:
    """The results of R runs with T updates each.

    Attributes:
        k: float64 [R, T + 1]; the real K at the start and after each update.
        boundary: float64 [R, T]; NaN while there are too few successes.
        success: float64 [R, T]; the share of the update's episodes that ended within their K.
        steps: int64 [R, T]; the number of steps of all episodes of the update.
    """

    k: np.ndarray
    boundary: np.ndarray
    success: np.ndarray
    steps: np.ndarray


def elastic_runs(
    needed: Iterable[np.ndarray],
    *,
    k0: ArrayLike = 15,
    k_min: int = 5,
    k_max: int = 50,
    alpha: ArrayLike = 0.1,
    delta: ArrayLike = 10.0,
    buffer_size: int = 100,
    min_successes: int = 20,
    statistic: Statistic = "p90",
    rounding: Rounding = "floor",
    see_all: bool = False,
) -> Runs:
    """Plays the controller against the lengths that episodes need.

    An episode that needs at most K steps succeeds, and the controller records its length. A longer episode is stopped at K, and
    the controller does not record it.

    Args:
        needed: For each update the number of steps that each of its E episodes needs, int16 [R, E].
        k0: The horizon at the start, one number or one per run [R]. All settings are those of ElasticHorizon.
        k_min: The lower bound of the target.
        k_max: The upper bound of the target.
        alpha: The smoothing, one number or one per run [R].
        delta: The headroom, one number or one per run [R].
        buffer_size: The number of remembered successes, N.
        min_successes: K does not move before this many successes, N_min.
        statistic: The statistic that is the boundary.
        rounding: How K becomes a whole number.
        see_all: Also record the lengths of the longer episodes, as if successes longer than K could be seen. The difference
            shows the effect of the truncation.
    """
    k: np.ndarray = np.zeros(0)
    ks: list[np.ndarray] = []
    boundaries: list[np.ndarray] = []
    shares: list[np.ndarray] = []
    steps: list[np.ndarray] = []
    for lengths in needed:
        if not ks:
            runs = len(lengths)
            k = np.broadcast_to(np.asarray(k0, dtype=float), runs).copy()
            buffer = np.full((runs, buffer_size), _NONE, dtype=np.int32)  # int32 sorts 6 times as fast as int16
            heard = np.zeros(runs, dtype=np.int64)
            ks.append(k.copy())
        applied = np.rint(k) if rounding == "nearest" else _floor(k)
        budget = applied.astype(np.int16)[:, None]
        success = lengths <= budget
        _append(buffer, heard, lengths, np.ones_like(success) if see_all else success)
        ready = heard >= min_successes
        boundary = np.where(ready, _boundary(buffer, np.minimum(heard, buffer_size), statistic), np.nan)
        target = np.clip(boundary + np.asarray(delta, dtype=float), float(k_min), float(k_max))
        moved = k + np.asarray(alpha, dtype=float) * (target - k)
        k = np.where(ready, _floor(moved) if rounding == "floor-state" else moved, k)
        ks.append(k)
        boundaries.append(boundary)
        shares.append(success.mean(axis=1))
        steps.append(np.minimum(lengths, budget).sum(axis=1, dtype=np.int64))
    return Runs(*(np.stack(column, axis=1) for column in (ks, boundaries, shares, steps)))


def tail(values: np.ndarray) -> np.ndarray:
    """Returns the last quarter of the updates, and at least one: [R, T] becomes [R, T // 4]."""
    return values[:, -max(1, values.shape[1] // 4) :]


def settling_updates(k: np.ndarray, within: float = 2.0) -> np.ndarray:
    """Returns for each run the first update after which K is near its final value, the mean of its last quarter.

    Args:
        k: [R, T + 1], as in Runs.
        within: The greatest distance that counts as near, in steps.

    Returns:
        int64 [R].
    """
    near = np.abs(k - tail(k).mean(axis=1, keepdims=True)) <= within
    return np.asarray(near.argmax(axis=1))


def targets(law: LengthLaw, delta: float, k_min: int, k_max: int, statistic: Statistic) -> dict[int, float]:
    """Returns for each horizon k the target with infinitely many episodes, in steps.

    The target is the statistic of the lengths <= k, plus delta, clipped to k_min..k_max. Horizons that are too short for every
    episode are skipped, because K never moves there.
    """

    def boundary(k: int) -> float:
        if statistic != "mean":
            return float(law.quantile(_LEVEL[statistic] / 100, k))
        return float(law.p[:k] @ np.arange(1, len(law.p[:k]) + 1)) / law.share_within(k)

    lowest = max(k_min, law.quantile(0.0))
    return {k: min(max(boundary(k) + delta, float(k_min)), float(k_max)) for k in range(lowest, k_max + 1)}


def fixed_points(targets: dict[int, float]) -> list[float]:
    """Returns the values at which a real K, whose floor is applied, stops moving.

    K stops at its target t(k) if that lies in [k, k + 1). It stops at k + 1 if t(k) is at least k + 1 and t(k + 1) is below
    k + 1. If there is more than one such value, the final K depends on the start.

    Args:
        targets: The targets that `targets` returns, for successive horizons.

    >>> from harness.experiments.simulate.lengths import two_part
    >>> fixed_points(targets(two_part("gap", (3, 9), (25, 45), 0.3), 10, 5, 50, "p90"))
    [19.0, 48.0]
    """
    points = {t for k, t in targets.items() if k <= t < k + 1}
    points |= {float(k + 1) for k, t in targets.items() if k + 1 in targets and t >= k + 1 > targets[k + 1]}
    return sorted(points)


def _floor(k: np.ndarray) -> np.ndarray:
    return np.floor(k + 1e-9)  # as eh_gym.horizon.schedules.floor_to_steps


def _append(buffer: np.ndarray, heard: np.ndarray, lengths: np.ndarray, mask: np.ndarray) -> None:
    """Writes the masked lengths of each run over the oldest ones in its ring buffer, and adds their number to `heard`."""
    size = buffer.shape[1]
    rank = np.cumsum(mask, axis=1, dtype=np.int32)
    news = rank[:, -1]
    keep = mask & (rank > (news - size)[:, None])  # if there are more than fit, the last ones
    flat = np.flatnonzero(keep)
    kept = keep.sum(axis=1)
    place = (np.repeat(heard, kept) + rank.ravel()[flat]) % size
    buffer.ravel()[np.repeat(np.arange(len(buffer)) * size, kept) + place] = lengths.ravel()[flat]
    heard += news


def _boundary(buffer: np.ndarray, count: np.ndarray, statistic: Statistic) -> np.ndarray:
    """Returns the statistic of the first `count` places of each run, float64 [R]. It has no meaning if `count` is 0."""
    if statistic == "mean":
        total = np.where(buffer == _NONE, 0, buffer).sum(axis=1, dtype=np.int64)
        return np.asarray(total / np.maximum(count, 1))
    ordered = np.sort(buffer, axis=1)
    last = np.maximum(count - 1, 0)
    place = _LEVEL[statistic] / 100 * last
    low = np.floor(place).astype(np.int64)
    rows = np.arange(len(buffer))
    a, b = (ordered[rows, i].astype(float) for i in (low, np.minimum(low + 1, last)))
    # As in numpy's percentile, which starts from the nearer end, so that the result is monotone.
    t = place - low
    return np.asarray(np.where(t >= 0.5, b - (b - a) * (1 - t), a + (b - a) * t))
