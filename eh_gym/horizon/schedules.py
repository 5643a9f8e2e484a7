"""Horizons that depend only on the number of updates: the baselines of Elastic Horizon."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.checks import check_bounds, floor_to_steps, positive_int
from eh_gym.horizon.controller import EpisodeOutcome, check_outcome, is_whole
from eh_gym.horizon.saved import Saved
from eh_gym.ranges import Range


class _Schedule(Saved):
    def __post_init__(self) -> None:
        super().__post_init__()
        self._updates = 0

    @property
    def horizon(self) -> int:
        """The budget K of an episode that starts now, in steps."""
        return self.horizon_at(self._updates)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        raise NotImplementedError

    def record(self, outcome: EpisodeOutcome) -> None:
        """Does nothing."""
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


@dataclass(eq=False, repr=False)
class FixedHorizon(_Schedule):
    """The same K for every episode.

    Raises:
        ConfigError: k0 is out of range.

    >>> FixedHorizon(15).horizon
    15
    """

    k0: Annotated[int, Range(1)] = 15
    """K, in steps."""

    def horizon_at(self, update: int) -> int:
        """Always k0."""
        return self.k0


@dataclass(eq=False, repr=False)
class LinearHorizon(_Schedule):
    """K = min(k_min + delta t, k_max) after t updates, floored (Elastic Horizon paper, Eq. 3).

    The defaults are the paper's stand-in for AgentGym-RL's ScalingInter (Eq. 12). AgentGym-RL's own code climbs in
    stages, see `StagedHorizon`. The paper does not state the rounding.

    Raises:
        ConfigError: An argument is out of range.

    >>> h = LinearHorizon(10, 50, 0.2)
    >>> [h.horizon_at(t) for t in (0, 4, 5, 199, 200, 1000)]
    [10, 10, 11, 49, 50, 50]
    """

    k_min: Annotated[int, Range(1)] = 10
    """K at update 0, in steps."""
    k_max: Annotated[int, Range(1)] = 50
    """The upper bound of K, in steps."""
    delta: Annotated[float, Range(0, above=True)] = 0.2
    """The number of steps that K grows by in each update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self.k_min, self.k_max)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return floor_to_steps(min(self.k_min + self.delta * update, self.k_max))


@dataclass(eq=False, repr=False)
class MultiplicativeHorizon(_Schedule):
    """K = min(k_min (t // stage_updates + 1), k_max) after t updates (Elastic Horizon paper, Eq. 4; TTI's rule).

    Raises:
        ConfigError: An argument is out of range.

    >>> h = MultiplicativeHorizon(10, 30, stage_updates=50)
    >>> [h.horizon_at(t) for t in (0, 49, 50, 100, 150)]
    [10, 10, 20, 30, 30]
    """

    k_min: Annotated[int, Range(1)] = 5
    """K of the first stage, and what each later stage adds, in steps."""
    k_max: Annotated[int, Range(1)] = 50
    """The upper bound of K, in steps."""
    stage_updates: Annotated[int, Range(1)] = 50
    """The number of updates in a stage."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self.k_min, self.k_max)

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return min(self.k_min * (update // self.stage_updates + 1), self.k_max)


@dataclass(eq=False, repr=False)
class StagedHorizon(_Schedule):
    """K from a table of your own. Each entry holds from its update until the next entry.

    AgentGym-RL's ``scaling_inter_stepwise`` with rounds [10, 20, 30] every 100 steps is
    ``StagedHorizon({0: 10, 100: 20, 200: 30})``.

    Raises:
        ConfigError: The table has no entry for update 0, or an update or a K is out of range.

    >>> h = StagedHorizon({0: 15, 50: 20, 100: 30, 150: 50})
    >>> [h.horizon_at(t) for t in (0, 49, 50, 149, 150, 999)]
    [15, 15, 20, 30, 50, 50]
    """

    stages: Mapping[int, int] = field(default_factory=lambda: {0: 15, 50: 20, 100: 30, 150: 50})
    """K by the update from which it holds, with an entry for update 0. K may also fall. The default is the paper's
    table for TTI. An update may be a text of digits, as in JSON."""

    def __post_init__(self) -> None:
        given: Any = self.stages
        if not isinstance(given, Mapping):
            raise ConfigError(f"stages must be {{update: K}}, got {given!r}; {{0: 15, 50: 20}} has two stages")
        table = {int(u) if isinstance(u, str) and u.isdecimal() else u: k for u, k in given.items()}
        for update in table:
            if not is_whole(update) or update < 0:
                raise ConfigError(f"stages must be keyed by updates, whole and >= 0, got {update!r}; use {{update: K}}")
        if 0 not in table:
            raise ConfigError(f"stages must say K at update 0, got updates {sorted(table)}; add 0: K")
        self.stages = {int(update): positive_int(f"stages[{update}]", table[update]) for update in sorted(table)}
        super().__post_init__()

    def horizon_at(self, update: int) -> int:
        """K after `update` updates."""
        return self.stages[max(start for start in self.stages if start <= update)]

    def _settings(self) -> dict[str, Any]:
        return {"stages": [[update, k] for update, k in self.stages.items()]}  # JSON's keys are texts


@dataclass(eq=False, repr=False)
class TTIHorizon(StagedHorizon):
    """The paper's TTI baseline (appendix "Baseline Implementations"): `StagedHorizon` under another name.

    So a recipe can set both. `MultiplicativeHorizon` can't make it: its K are no multiples of 15.

    >>> [TTIHorizon().horizon_at(t) for t in (0, 50, 100, 150)]
    [15, 20, 30, 50]
    """
