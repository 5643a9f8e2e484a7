"""A controller of its own for each kind of task.

Left out: borrowing between the kinds; each needs successes of its own before its K moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, episode_horizon
from eh_gym.horizon.schedules import check_state

__all__ = ["KeyedHorizon"]


class KeyedHorizon:
    """Gives every episode the K of its task's kind, and tells that kind's controller how it ended.

    Args:
        make: Makes the controller of a kind that is met for the first time; all with the same settings.
        key: The kind of a task id (None where the environment names no task), such as its difficulty, app or domain; the
            same at every call. A module's function, where controllers are pickled.

    >>> from eh_gym.horizon import ElasticHorizon
    >>> keyed = KeyedHorizon(lambda: ElasticHorizon(min_successes=1), key=lambda task_id: task_id.split("-")[0])
    >>> keyed.record(EpisodeOutcome(length=15, horizon=15, success=True, task_id="hard-1"))
    >>> keyed.record(EpisodeOutcome(length=3, horizon=15, success=True, task_id="easy-7"))
    >>> for _ in range(40): _ = keyed.update()
    >>> keyed.horizon_for("hard-2", None), keyed.horizon_for("easy-2", None), keyed.horizons
    (24, 13, {'easy': 13, 'hard': 24})
    """

    def __init__(self, make: Callable[[], HorizonController], key: Callable[[str | None], str]) -> None:
        if not callable(make) or not isinstance(made := make(), HorizonController):
            raise ConfigError("make must return a HorizonController; pass ElasticHorizon, or a lambda with settings")
        if not callable(key):
            raise ConfigError(f"key must be a function of a task id, got {key!r}; pass lambda task_id: ...")
        self._make, self._key = make, key
        self._fresh = made  # of a kind that has not been met
        self._controllers: dict[str, HorizonController] = {}
        self._lock = threading.Lock()

    @property
    def horizons(self) -> dict[str, int]:
        """The K of each kind met so far, in steps."""
        with self._lock:
            return {key: self._controllers[key].horizon for key in sorted(self._controllers)}

    @property
    def horizon(self) -> int:
        """The largest of the kinds' K, in steps; before the first outcome that of a new kind."""
        return max(self.horizons.values(), default=self._fresh.horizon)

    def horizon_for(self, task_id: str | None, seed: int | None) -> int:
        """The K of one episode: that of its task's kind."""
        with self._lock:
            controller = self._controllers.get(self._key(task_id), self._fresh)
        return episode_horizon(controller, task_id, seed)

    def record(self, outcome: EpisodeOutcome) -> None:
        """Tells the controller of the task's kind. Thread-safe."""
        key = self._key(outcome.task_id)
        with self._lock:
            controller = self._controllers.get(key) or self._controllers.setdefault(key, self._make())
        controller.record(outcome)

    def update(self) -> dict[str, float]:
        """Moves each kind's K once. Returns ``horizon/k``, the largest, in steps."""
        with self._lock:
            controllers = list(self._controllers.values())
        for controller in controllers:
            controller.update()
        return {"horizon/k": float(self.horizon)}

    def state_dict(self) -> dict[str, Any]:
        """Each kind's state."""
        with self._lock:
            states = {key: controller.state_dict() for key, controller in sorted(self._controllers.items())}
        return {"kind": type(self).__name__, "settings": self._settings(), "controllers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state`.

        Raises:
            StateError: `state` comes from another kind of controller or from other settings, or was edited.
        """
        check_state(state, type(self).__name__, self._settings(), {"controllers"})
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
        return {"kind": fresh["kind"], "settings": fresh["settings"]}

    def __repr__(self) -> str:
        return f"KeyedHorizon({self._fresh!r}, {self.horizons})"

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            state = {k: v for k, v in vars(self).items() if k != "_lock"}
            return state | {"_controllers": dict(self._controllers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
