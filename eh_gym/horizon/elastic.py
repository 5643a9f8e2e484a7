"""Elastic Horizon: K follows the lengths of the agent's own successes."""

import math
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.checks import check_bounds, floor_to_steps, is_number
from eh_gym.horizon.controller import EpisodeOutcome, check_outcome, is_whole
from eh_gym.horizon.saved import Saved
from eh_gym.ranges import Range

Statistic = Literal["mean", "p50", "p75", "p90", "p95", "max"]
Rounding = Literal["floor", "nearest", "floor-state"]

_PERCENTILE: dict[Statistic, float] = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "max": 100.0}


@dataclass(eq=False, repr=False)
class ElasticHorizon(Saved):
    """The closed-loop controller of the Elastic Horizon paper (Eq. 5 to 7; Algorithm 1, lines 7 to 18).

    Once per update, if at least `min_successes` lengths of successes are in the buffer:

        boundary = P90 of the last `buffer_size` lengths of successes       (Eq. 5; line 15)
        target   = clip(boundary + delta, k_min, k_max)                     (Eq. 6, clipped as in Eq. 7; line 16)
        K        = (1 - alpha) K + alpha target                             (Eq. 7, restated as Eq. 9; line 17)

    The percentile is ``np.percentile(lengths, 90)``, with linear interpolation; the paper names none. With fewer
    successes, K stays (line 14).

    The paper contradicts itself about rounding. Algorithm 1 keeps K real; Algorithm 2 (line 31) stores the floor of
    each update, which with alpha = 0.1 only grows if the target is at least 10 above it. `rounding` has both.

    A success can't be longer than its K. `delta` lets K grow beyond the successes.

    Raises:
        ConfigError: An argument is out of range.

    >>> controller = ElasticHorizon(k0=15, min_successes=1)
    >>> controller.record(EpisodeOutcome(length=12, horizon=15, success=True))
    >>> controller.update()["horizon/target"], round(controller.k_real, 6), controller.horizon
    (22.0, 15.7, 15)
    """

    k0: Annotated[int, Range(1)] = 15
    """K at the start, in steps, from k_min to k_max."""
    k_min: Annotated[int, Range(1)] = 5
    """The lower bound of the target, in steps."""
    k_max: Annotated[int, Range(1)] = 50
    """The upper bound of the target, in steps."""
    alpha: Annotated[float, Range(0, 1, above=True)] = 0.1
    """The weight of the new target in the moving average of K."""
    delta: Annotated[float, Range(0)] = 10.0
    """The headroom above the boundary, in steps."""
    buffer_size: Annotated[int, Range(1, sys.maxsize)] = 100
    """The number of latest successes that are remembered (N)."""
    min_successes: Annotated[int, Range(1)] = 20
    """K moves only when so many successes are remembered (N_min). At most buffer_size."""
    statistic: Statistic = "p90"
    """The boundary is this statistic of the successes' lengths. The paper's is p90; its ablation has the others."""
    rounding: Rounding = "floor"
    """How K is rounded. floor keeps K real and applies its floor. nearest applies the nearest whole number, half to
    even, as the authors' code does. floor-state also stores the floor, as the paper's Algorithm 2 does; then K
    stalls."""
    cold_growth: Annotated[float, Range(0)] = 0.0
    """The number of steps that K grows by, up to k_max, in an update without enough successes. The paper's is 0: an
    agent that never succeeds within k0 stays there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self.k_min, self.k_max)
        if not self.k_min <= self.k0 <= self.k_max:
            raise ConfigError(
                f"k0 must be in k_min..k_max ({self.k_min}..{self.k_max}), got {self.k0}; move k0 or a bound"
            )
        if self.min_successes > self.buffer_size:
            raise ConfigError(
                f"min_successes must be <= buffer_size ({self.buffer_size}), got {self.min_successes}: K would never "
                "move; lower min_successes or raise buffer_size"
            )
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
        if check_outcome(outcome).success:
            with self._lock:
                self._lengths.append(int(outcome.length))

    def update(self) -> dict[str, float]:
        """Moves K once.

        Returns:
            ``horizon/k`` (the next K), ``horizon/k_real``, ``horizon/boundary`` and ``horizon/target`` (NaN with too
            few successes), all in steps, and ``horizon/buffer_size``.
        """
        with self._lock:
            boundary = target = math.nan
            if len(self._lengths) >= self.min_successes:
                lengths = np.array(self._lengths)
                boundary = float(
                    lengths.mean() if self.statistic == "mean" else np.percentile(lengths, _PERCENTILE[self.statistic])
                )
                target = min(max(boundary + self.delta, float(self.k_min)), float(self.k_max))
                # Eq. 7, written so that K at the target stays exactly the same.
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
