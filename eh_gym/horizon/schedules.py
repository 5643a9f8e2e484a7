"""Horizons that depend only on the number of updates: the baselines of Elastic Horizon.

Each is a pure function of the update index, so a resumed run cannot drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.checks import bounds, floor_to_steps, is_number, positive_int
from eh_gym.horizon.controller import EpisodeOutcome, check_outcome, is_whole
from eh_gym.horizon.saved import Saved

__all__ = ["FixedHorizon", "LinearHorizon", "MultiplicativeHorizon", "StagedHorizon"]


class _Schedule(Saved):
    """Counts updates. A subclass computes K from the count."""

    def __init__(self) -> None:
        super().__init__()
        self._updates = 0

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

    def _state(self) -> dict[str, Any]:
        return {"updates": self._updates}

    def _load(self, state: Mapping[str, Any]) -> None:
        updates = state["updates"]
        if not is_whole(updates) or updates < 0:
            raise StateError(f"updates must be a whole number >= 0, got {updates!r}; the state was cut or edited")
        self._updates = updates


class FixedHorizon(_Schedule):
    """The same K for every episode.

    Args:
        k: Steps, >= 1.

    >>> FixedHorizon(15).horizon
    15
    """

    _names = ("k",)

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = positive_int("k", k)

    def horizon_at(self, update: int) -> int:
        """Always k."""
        return self.k


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

    _names = ("k_min", "k_max", "delta")

    def __init__(self, k_min: int, k_max: int, delta: float) -> None:
        super().__init__()
        self.k_min, self.k_max = bounds(k_min, k_max)
        if not (is_number(delta) and delta > 0):
            raise ConfigError(f"delta must be > 0 steps per update, got {delta!r}; use FixedHorizon for a constant K")
        self.delta = float(delta)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return floor_to_steps(min(self.k_min + self.delta * update, self.k_max))


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

    _names = ("k_min", "k_max", "stage_updates")

    def __init__(self, k_min: int, k_max: int, stage_updates: int) -> None:
        super().__init__()
        self.k_min, self.k_max = bounds(k_min, k_max)
        self.stage_updates = positive_int("stage_updates", stage_updates)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return min(self.k_min * (update // self.stage_updates + 1), self.k_max)


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
