"""Horizons that depend only on the number of updates: the baselines of Elastic Horizon.

Each is a pure function of the update index, so a resumed run cannot drift.
"""

from __future__ import annotations

import math
import numbers
import os
import threading
from collections.abc import Mapping
from typing import Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.controller import EpisodeOutcome, check_outcome, is_whole

__all__ = ["FixedHorizon", "LinearHorizon", "MultiplicativeHorizon", "StagedHorizon"]


class _Schedule:
    """Counts updates. A subclass computes K from the count."""

    def __init__(self) -> None:
        self.made_in = os.getpid()
        self._updates = 0
        self._lock = threading.Lock()

    @property
    def horizon(self) -> int:
        """The budget K of an episode that starts now, in steps."""
        return self.horizon_at(self._updates)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        raise NotImplementedError

    def record(self, outcome: EpisodeOutcome) -> None:
        """Does nothing: a schedule does not depend on outcomes."""
        check_outcome(outcome)

    def update(self) -> dict[str, float]:
        """Counts one update. Returns ``horizon/k``, the K of the next episodes."""
        with self._lock:
            self._updates += 1
            return {"horizon/k": float(self.horizon)}

    def state_dict(self) -> dict[str, Any]:
        """The number of updates and the settings."""
        return {"kind": type(self).__name__, "settings": self._settings(), "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            StateError: `state` comes from another kind of controller or from other settings.
        """
        check_state(state, type(self).__name__, self._settings(), {"updates"})
        updates = state["updates"]
        if not is_whole(updates) or updates < 0:
            raise StateError(f"updates must be a whole number >= 0, got {updates!r}; the state was cut or edited")
        self._updates = updates

    def _settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v!r}" for k, v in self._settings().items())
        return f"{type(self).__name__}({settings})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()


class FixedHorizon(_Schedule):
    """The same K for every episode.

    Args:
        k: Steps, >= 1.

    >>> FixedHorizon(15).horizon
    15
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = positive_int("k", k)

    def horizon_at(self, update: int) -> int:
        """Always k."""
        return self.k

    def _settings(self) -> dict[str, Any]:
        return {"k": self.k}


class LinearHorizon(_Schedule):
    """K = min(k_min + delta t, k_max) after t updates, floored (Elastic Horizon paper, Eq. 3).

    The paper's stand-in for AgentGym-RL's ScalingInter is ``LinearHorizon(10, 50, 0.2)`` (Eq. 12), which reaches 50 at
    update 200; AgentGym-RL's own code climbs in stages, see `StagedHorizon`. The paper does not state the rounding; we
    take the floor.

    Args:
        k_min: K at update 0, >= 1.
        k_max: Upper bound, >= k_min.
        delta: Steps added per update, > 0.

    >>> h = LinearHorizon(10, 50, 0.2)
    >>> [h.horizon_at(t) for t in (0, 4, 5, 199, 200, 1000)]
    [10, 10, 11, 49, 50, 50]
    """

    def __init__(self, k_min: int, k_max: int, delta: float) -> None:
        super().__init__()
        self.k_min, self.k_max = bounds(k_min, k_max)
        if not (is_number(delta) and delta > 0):
            raise ConfigError(f"delta must be > 0 steps per update, got {delta!r}; use FixedHorizon for a constant K")
        self.delta = float(delta)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return floor_to_steps(min(self.k_min + self.delta * update, self.k_max))

    def _settings(self) -> dict[str, Any]:
        return {"k_min": self.k_min, "k_max": self.k_max, "delta": self.delta}


class MultiplicativeHorizon(_Schedule):
    """K = min(k_min (t // stage_updates + 1), k_max) after t updates (Elastic Horizon paper, Eq. 4; TTI's rule).

    Args:
        k_min: K of the first stage, >= 1.
        k_max: Upper bound, >= k_min.
        stage_updates: Updates per stage, >= 1.

    >>> h = MultiplicativeHorizon(10, 30, stage_updates=50)
    >>> [h.horizon_at(t) for t in (0, 49, 50, 100, 150)]
    [10, 10, 20, 30, 30]
    """

    def __init__(self, k_min: int, k_max: int, stage_updates: int) -> None:
        super().__init__()
        self.k_min, self.k_max = bounds(k_min, k_max)
        self.stage_updates = positive_int("stage_updates", stage_updates)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return min(self.k_min * (update // self.stage_updates + 1), self.k_max)

    def _settings(self) -> dict[str, Any]:
        return {"k_min": self.k_min, "k_max": self.k_max, "stage_updates": self.stage_updates}


class StagedHorizon(_Schedule):
    """K from a table. Each entry holds from its update until the next entry.

    The paper's TTI baseline is ``StagedHorizon({0: 15, 50: 20, 100: 30, 150: 50})`` (Elastic Horizon paper, appendix
    "Baseline Implementations": these K are no multiples of 15, so Eq. 4 can't make them). AgentGym-RL's
    ``scaling_inter_stepwise`` with rounds [10, 20, 30] every 100 steps is ``StagedHorizon({0: 10, 100: 20, 200: 30})``.

    Args:
        stages: {update: K}, with an entry for update 0; K >= 1. K may fall from one stage to the next. An update may
            also be a string of digits, as in JSON.

    >>> h = StagedHorizon({0: 15, 50: 20, 100: 30, 150: 50})
    >>> [h.horizon_at(t) for t in (0, 49, 50, 149, 150, 999)]
    [15, 15, 20, 30, 50, 50]
    """

    def __init__(self, stages: Mapping[int, int] | Mapping[str, int]) -> None:
        super().__init__()
        if not isinstance(stages, Mapping):
            raise ConfigError(f"stages must be {{update: K}}, got {stages!r}; {{0: 15, 50: 20}} has two stages")
        table: dict[Any, int] = {int(u) if isinstance(u, str) and u.isdecimal() else u: k for u, k in stages.items()}
        for update in table:
            if not is_whole(update) or update < 0:
                raise ConfigError(f"stages must be keyed by updates, whole and >= 0, got {update!r}; use {{update: K}}")
        if 0 not in table:
            raise ConfigError(f"stages must say K at update 0, got updates {sorted(table)}; add 0: K")
        self.stages = {int(update): positive_int(f"stages[{update}]", table[update]) for update in sorted(table)}

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return self.stages[max(start for start in self.stages if start <= update)]

    def _settings(self) -> dict[str, Any]:
        return {"stages": [[update, k] for update, k in self.stages.items()]}


def positive_int(name: str, value: int) -> int:
    """`value`, if it is a whole number >= 1, numpy's included."""
    if not is_whole(value) or value < 1:
        raise ConfigError(f"{name} must be a whole number >= 1, got {value!r}; pass an int such as 15")
    return int(value)


def is_number(value: object) -> bool:
    """Whether `value` is a finite real number, numpy's included."""
    try:
        return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def bounds(k_min: int, k_max: int, *, low_name: str = "k_min") -> tuple[int, int]:
    """The two bounds, if they are whole, positive and in order."""
    low, high = positive_int(low_name, k_min), positive_int("k_max", k_max)
    if high < low:
        raise ConfigError(f"k_max must be >= {low_name} ({low}), got {high}; raise k_max or lower {low_name}")
    return low, high


def floor_to_steps(k: float) -> int:
    """The floor of `value`; a value that is whole up to rounding error counts as whole.

    In floating point 7 + 0.7 * 170 is 125.99999999999999, where exact arithmetic says 126. The tolerance, 1e-9 of a step,
    is far above the rounding error of any sum here and far below any difference that matters.

    >>> floor_to_steps(7 + 0.7 * 170), floor_to_steps(19.999)
    (126, 19)
    """
    return math.floor(k + 1e-9)


def check_state(state: Mapping[str, Any], kind: str, settings: Mapping[str, Any], keys: set[str]) -> None:
    """Raises StateError unless `state` was made by a controller of this kind and these settings."""
    if not isinstance(state, Mapping) or state.get("kind") != kind:
        got = state.get("kind", "something else") if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"expected the state of a {kind}, got that of {got}; build the controller that was saved")
    if state.get("settings") != dict(settings):
        raise StateError(
            f"the state was saved with settings {state.get('settings')}, this {kind} has {dict(settings)}; "
            "build it with the saved settings, or start anew"
        )
    if not keys <= set(state):
        raise StateError(f"the state of a {kind} needs {sorted(keys)}, got {sorted(state)}; it was cut or edited")
