"""Horizons that depend on the number of updates alone: the baselines of Elastic Horizon.

Each is a pure function of the update index, so a resumed run cannot drift. Left out: anything that looks at an episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.controller import EpisodeOutcome

__all__ = ["FixedHorizon", "LinearHorizon", "MultiplicativeHorizon", "StagedHorizon"]


class _Schedule:
    """Counts updates; a subclass says what K that makes."""

    def __init__(self) -> None:
        self._updates = 0

    @property
    def horizon(self) -> int:
        """The budget K of an episode that starts now, in steps."""
        return self.horizon_at(self._updates)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        raise NotImplementedError

    def record(self, outcome: EpisodeOutcome) -> None:
        """Does nothing: a schedule looks at no outcome."""

    def update(self) -> dict[str, float]:
        """Counts one update. Returns ``horizon/k``, the K of the next episodes."""
        self._updates += 1
        return {"horizon/k": float(self.horizon)}

    def state_dict(self) -> dict[str, Any]:
        """The number of updates, and the settings that it belongs to."""
        return {"kind": type(self).__name__, "settings": self._settings(), "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state`.

        Raises:
            StateError: `state` comes from another kind of controller or from other settings.
        """
        check_state(state, type(self).__name__, self._settings(), {"updates"})
        self._updates = int(state["updates"])

    def _settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v!r}" for k, v in self._settings().items())
        return f"{type(self).__name__}({settings})"


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
    """K = min(k_min + delta t, k_max) after t updates, floored (Elastic Horizon paper, Eq. 3; AgentGym-RL's ScalingInter).

    The paper's run: ``LinearHorizon(10, 50, 0.2)`` reaches 50 at update 200.

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
        if not (math.isfinite(delta) and delta > 0):
            raise ConfigError(f"delta must be > 0 steps per update, got {delta}; use FixedHorizon for a constant K")
        self.delta = float(delta)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return min(floor_to_steps(self.k_min + self.delta * update), self.k_max)

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
    """K from a table: each entry holds from its update on until the next.

    The paper's TTI baseline is ``StagedHorizon({0: 15, 50: 20, 100: 30, 150: 50})`` (Appendix, "Baseline
    Implementations"); AgentGym-RL's staircase is ``StagedHorizon({0: 10, 100: 20, 200: 30})`` with its rounds as keys.

    Args:
        stages: {update: K}, with an entry for update 0; K >= 1.

    >>> h = StagedHorizon({0: 15, 50: 20, 100: 30, 150: 50})
    >>> [h.horizon_at(t) for t in (0, 49, 50, 149, 150, 999)]
    [15, 15, 20, 30, 50, 50]
    """

    def __init__(self, stages: Mapping[int, int]) -> None:
        super().__init__()
        if 0 not in stages:
            raise ConfigError(f"stages must say K at update 0, got updates {sorted(stages)}; add 0: K")
        for update, k in stages.items():
            if not isinstance(update, int) or update < 0:
                raise ConfigError(f"stages must be keyed by updates >= 0, got {update!r}")
            positive_int(f"stages[{update}]", k)
        self.stages = dict(sorted(stages.items()))

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return self.stages[max(start for start in self.stages if start <= update)]

    def _settings(self) -> dict[str, Any]:
        return {"stages": [[update, k] for update, k in self.stages.items()]}


def positive_int(name: str, value: int) -> int:
    """`value`, if it is a whole number >= 1."""
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ConfigError(f"{name} must be a whole number >= 1, got {value!r}")
    return int(value)


def bounds(k_min: int, k_max: int) -> tuple[int, int]:
    """The two bounds, if they are whole, positive and in order."""
    low, high = positive_int("k_min", k_min), positive_int("k_max", k_max)
    if high < low:
        raise ConfigError(f"k_max must be >= k_min ({low}), got {high}; raise k_max or lower k_min")
    return low, high


def floor_to_steps(k: float) -> int:
    """Floor, but a value that is whole up to rounding error counts as whole.

    In floating point 0.9 * 19 + 0.1 * 29 is 19.999999999999996, where Eq. 7 says 20.

    >>> floor_to_steps(0.9 * 19 + 0.1 * 29), floor_to_steps(19.999)
    (20, 19)
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
