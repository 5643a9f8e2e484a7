"""Elastic Horizon: K follows the lengths of the agent's own successes, up and down.

The controller looks at nothing else: not at failures, tasks or the number of updates.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.checks import bounds, floor_to_steps, is_number, positive_int
from eh_gym.horizon.controller import EpisodeOutcome, check_outcome, is_whole
from eh_gym.horizon.saved import Saved

__all__ = ["ElasticHorizon", "Rounding", "Statistic"]

Statistic = Literal["mean", "p50", "p75", "p90", "p95", "max"]
Rounding = Literal["floor", "nearest", "floor-state"]

_PERCENTILE: dict[Statistic, float] = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "max": 100.0}


class ElasticHorizon(Saved):
    """The closed-loop controller of the Elastic Horizon paper (Eq. 5 to 7; Algorithm 1, lines 7 to 18).

    Once per update, if at least `min_successes` lengths of successes are in the buffer:

        boundary = P90 of the last `buffer_size` lengths of successes       (Eq. 5; line 15)
        target   = clip(boundary + delta, k_min, k_max)                     (Eq. 6, clipped as in Eq. 7; line 16)
        K        = (1 - alpha) K + alpha target                             (Eq. 7, restated as Eq. 9; line 17)

    The percentile is numpy's, with linear interpolation (``np.percentile(lengths, 90)``); the paper does not name the
    interpolation. Until the buffer holds `min_successes`, K stays (line 14).

    The paper contradicts itself about rounding. Algorithm 1 keeps K real; the appendix's Algorithm 2 (line 31) stores
    the floor of each update. With alpha = 0.1 the stored integer cannot grow unless the target is at least 10 above it,
    so it stalls below the frontier, and where it stalls depends on where it started. The default keeps K real and
    floors only what is applied.

    A success can't be longer than its K, so the lengths are cut off at K. `delta` lets K grow beyond them.

    Args:
        k0: K at the start, in k_min..k_max.
        k_min: Lower bound of the target, in steps.
        k_max: Upper bound of the target, in steps.
        alpha: Smoothing, in (0, 1].
        delta: Headroom over the boundary, in steps, >= 0.
        buffer_size: The number of successes that are remembered (N).
        min_successes: The number of successes from which K moves (N_min), 1..buffer_size.
        statistic: The statistic of the lengths that is the boundary; the paper's is p90, and its ablation has the
            others.
        rounding: "floor" applies the floor of a real K (default). "nearest" applies the nearest integer, half to even (the
            authors' released controller). "floor-state" is Algorithm 2, which stalls.
        cold_growth: Steps that K grows by in an update without enough successes, at most to k_max; the paper's is 0, where
            an agent that never succeeds within k0 stays there.

    Raises:
        ConfigError: An argument is out of range.

    >>> controller = ElasticHorizon(k0=15, min_successes=1)
    >>> controller.record(EpisodeOutcome(length=12, horizon=15, success=True))
    >>> controller.update()["horizon/target"], round(controller.k_real, 6), controller.horizon
    (22.0, 15.7, 15)
    """

    _names = (
        "k0",
        "k_min",
        "k_max",
        "alpha",
        "delta",
        "buffer_size",
        "min_successes",
        "statistic",
        "rounding",
        "cold_growth",
    )

    def __init__(
        self,
        k0: int = 15,
        k_min: int = 5,
        k_max: int = 50,
        alpha: float = 0.1,
        delta: float = 10,
        buffer_size: int = 100,
        min_successes: int = 20,
        statistic: Statistic = "p90",
        rounding: Rounding = "floor",
        cold_growth: float = 0.0,
    ) -> None:
        super().__init__()
        self.k_min, self.k_max = bounds(k_min, k_max)
        self.k0 = positive_int("k0", k0)
        if not self.k_min <= self.k0 <= self.k_max:
            raise ConfigError(f"k0 must be in k_min..k_max ({self.k_min}..{self.k_max}), got {k0}; move k0 or a bound")
        if not (is_number(alpha) and 0 < alpha <= 1):
            raise ConfigError(f"alpha must be in (0, 1], got {alpha!r}; the paper's is 0.1")
        if not (is_number(delta) and delta >= 0):
            raise ConfigError(f"delta must be >= 0 steps, got {delta!r}; the paper's is 10")
        self.buffer_size = positive_int("buffer_size", buffer_size)
        self.min_successes = positive_int("min_successes", min_successes)
        if self.min_successes > self.buffer_size:
            raise ConfigError(
                f"min_successes must be <= buffer_size ({buffer_size}), got {min_successes}: K would never move; "
                "lower min_successes or raise buffer_size"
            )
        if statistic not in ("mean", *_PERCENTILE):
            raise ConfigError(f"statistic must be one of {', '.join(('mean', *_PERCENTILE))}, got {statistic!r}")
        if rounding not in ("floor", "nearest", "floor-state"):
            raise ConfigError(f"rounding must be one of floor, nearest, floor-state, got {rounding!r}")
        if not (is_number(cold_growth) and cold_growth >= 0):
            raise ConfigError(f"cold_growth must be >= 0 steps per update, got {cold_growth!r}; the paper's is 0")
        self.alpha, self.delta, self.statistic, self.rounding = float(alpha), float(delta), statistic, rounding
        self.cold_growth = float(cold_growth)
        self._k = float(self.k0)
        self._lengths: deque[int] = deque(maxlen=self.buffer_size)

    @property
    def k_real(self) -> float:
        """K before rounding, in steps."""
        return self._k

    @property
    def horizon(self) -> int:
        """The budget K of an episode that starts now, in steps."""
        return round(self._k) if self.rounding == "nearest" else floor_to_steps(self._k)

    def record(self, outcome: EpisodeOutcome) -> None:
        """Remembers the length of a success. Thread-safe."""
        check_outcome(outcome)
        if outcome.success:
            with self._lock:
                self._lengths.append(int(outcome.length))

    def update(self) -> dict[str, float]:
        """Moves K once, if there are enough successes (or, with `cold_growth`, if there are not).

        Returns:
            ``horizon/k`` (the K of the next episodes), ``horizon/k_real``, ``horizon/boundary`` and ``horizon/target``
            (NaN while there are too few successes), all in steps, and ``horizon/buffer_size``.
        """
        with self._lock:
            boundary = target = math.nan
            if len(self._lengths) >= self.min_successes:
                boundary = self._boundary()
                target = min(max(boundary + self.delta, float(self.k_min)), float(self.k_max))
                # Eq. 7, written so that K stays exactly the same once it has reached the target.
                self._k += self.alpha * (target - self._k)
            else:
                self._k = min(self._k + self.cold_growth, float(self.k_max))
            if self.rounding == "floor-state":
                self._k = float(floor_to_steps(self._k))
            return {
                "horizon/k": float(self.horizon),
                "horizon/k_real": self._k,
                "horizon/boundary": boundary,
                "horizon/target": target,
                "horizon/buffer_size": float(len(self._lengths)),
            }

    def _state(self) -> dict[str, Any]:
        return {"k_real": self._k, "lengths": list(self._lengths)}

    def _load(self, state: Mapping[str, Any]) -> None:
        k, lengths = state["k_real"], state["lengths"]
        if not is_number(k) or not self.k_min <= k <= self.k_max:
            raise StateError(f"k_real must be in {self.k_min}..{self.k_max}, got {k!r}; the state was cut or edited")
        if not isinstance(lengths, list) or not all(is_whole(n) and n >= 1 for n in lengths):
            raise StateError(
                f"lengths must be a list of whole numbers >= 1, got {lengths!r}; the state was cut or edited"
            )
        with self._lock:
            self._k = float(k)
            self._lengths = deque(lengths, maxlen=self.buffer_size)

    def _boundary(self) -> float:
        lengths = np.array(self._lengths)
        return float(
            lengths.mean() if self.statistic == "mean" else np.percentile(lengths, _PERCENTILE[self.statistic])
        )
