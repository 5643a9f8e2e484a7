"""A separate controller for each kind of task."""

from collections.abc import Callable, Mapping
from typing import Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.controller import (
    EpisodeOutcome,
    HorizonController,
    ReadsInfo,
    check_outcome,
    episode_horizon,
    is_controller,
    kind_in,
)
from eh_gym.horizon.saved import Saved


class KeyedHorizon(Saved):
    """Gives every episode the K of its task's kind.

    Args:
        make: Makes the controller of a new kind, always with the same settings. For pickling, a function of a module.
        key: The key of the kind in the reset's info, such as a task's difficulty.

    Raises:
        ConfigError: An argument is out of range, or an episode's info has no such key.

    >>> from eh_gym.horizon import ElasticHorizon
    >>> keyed = KeyedHorizon(lambda: ElasticHorizon(min_successes=1), key="level")
    >>> keyed.record(EpisodeOutcome(length=15, horizon=15, success=True, info={"level": 3}))
    >>> keyed.record(EpisodeOutcome(length=3, horizon=15, success=True, info={"level": 1}))
    >>> for _ in range(40): _ = keyed.update()
    >>> keyed.horizon_for({"level": 3}, None), keyed.horizon_for({"level": 1}, None), keyed.horizons
    (24, 13, {'1': 13, '3': 24})
    """

    def __init__(self, make: Callable[[], HorizonController], key: str) -> None:
        if not callable(make) or not is_controller(made := make()):
            raise ConfigError("make must return a HorizonController; pass ElasticHorizon, or a lambda with settings")
        if not isinstance(key, str) or not key:
            raise ConfigError(f"key must be a key of the reset's info, such as 'difficulty', got {key!r}")
        super().__init__()
        self._make, self._key = make, key
        self.info_keys: tuple[str, ...] = (key, *(made.info_keys if isinstance(made, ReadsInfo) else ()))
        self._fresh = made  # for new kinds
        self._controllers: dict[str, HorizonController] = {}

    @property
    def horizons(self) -> dict[str, int]:
        """The K of each kind so far, in steps."""
        with self._lock:
            return {key: self._controllers[key].horizon for key in sorted(self._controllers)}

    @property
    def horizon(self) -> int:
        """The largest K of all kinds, in steps; before the first outcome, that of a new kind."""
        return max(self.horizons.values(), default=self._fresh.horizon)

    def horizon_for(self, info: Mapping[str, Any], seed: int | None) -> int:
        """The K of one episode: that of its task's kind."""
        with self._lock:
            controller = self._controllers.get(kind_in(info, self._key), self._fresh)
        return episode_horizon(controller, info, seed)

    def record(self, outcome: EpisodeOutcome) -> None:
        """Tells the controller of the task's kind. Thread-safe."""
        kind = kind_in(check_outcome(outcome).info, self._key)
        with self._lock:
            controller = self._controllers.get(kind) or self._controllers.setdefault(kind, self._make())
        controller.record(outcome)

    def update(self) -> dict[str, float]:
        """Moves each kind's K. Returns the largest as ``horizon/k``, and each as ``horizon/k_of/KIND``, in steps."""
        with self._lock:
            controllers = list(self._controllers.values())
        for controller in controllers:
            controller.update()
        return {"horizon/k": float(self.horizon)} | {
            f"horizon/k_of/{kind}": float(k) for kind, k in self.horizons.items()
        }

    def _state(self) -> dict[str, Any]:
        return {"controllers": {key: controller.state_dict() for key, controller in sorted(self._controllers.items())}}

    def _load(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state["controllers"], Mapping):
            raise StateError(f"controllers must be states by kind, got {state['controllers']!r}; the state was edited")
        loaded = {}
        for key, inner in state["controllers"].items():
            loaded[key] = self._make()
            loaded[key].load_state_dict(inner)
        with self._lock:
            self._controllers = loaded

    def _settings(self) -> dict[str, Any]:
        fresh = self._fresh.state_dict()
        kind = fresh.get("kind", type(self._fresh).__name__)  # the protocol asks for neither
        return {"key": self._key, "kind": kind, "settings": fresh.get("settings")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._fresh!r}, {self._key!r}, {self.horizons})"
