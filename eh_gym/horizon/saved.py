"""The base class of the controllers: saving, loading, pickling and printing."""

import dataclasses
import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, TypeVar

from eh_gym.errors import StateError
from eh_gym.ranges import check_fields

S = TypeVar("S", bound="Saved")


class Saved:
    """Checks the settings of a controller, saves it with them, and pickles it without its lock.

    A subclass is a dataclass whose fields are its settings, or overrides `_settings`. Its `_state` returns what it has
    counted, and `_load` takes that back. Copying a controller gives the same one, so that an environment with a copy
    of its arguments, as `gymnasium.register` and `copy.deepcopy` make, records into the original. Pickle it, or load a
    `state_dict`, for another one.
    """

    def __init__(self) -> None:
        self.made_in = os.getpid()
        self._lock = threading.Lock()

    def __post_init__(self) -> None:
        Saved.__init__(self)
        check_fields(self)

    def state_dict(self) -> dict[str, Any]:
        """The kind of the controller, its settings, and what it has counted; JSON-serialisable."""
        with self._lock:
            return {"kind": type(self).__name__, "settings": self._settings(), **self._state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            StateError: `state` comes from another kind of controller or from other settings, or was edited.
        """
        kind, settings = type(self).__name__, self._settings()
        if not isinstance(state, Mapping) or state.get("kind") != kind:
            got = state.get("kind", "something else") if isinstance(state, Mapping) else type(state).__name__
            raise StateError(f"expected the state of a {kind}, got that of {got}; build the controller that was saved")
        if state.get("settings") != settings:
            raise StateError(
                f"the state was saved with settings {state.get('settings')}, this {kind} has {settings}; "
                "build it with the saved settings, or start anew"
            )
        with self._lock:
            keys = set(self._state())
        if not keys <= set(state):
            raise StateError(f"the state of a {kind} needs {sorted(keys)}, got {sorted(state)}; it was cut or edited")
        self._load(state)

    def _settings(self) -> dict[str, Any]:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in fields if field.init}

    def _state(self) -> dict[str, Any]:
        raise NotImplementedError

    def _load(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def __copy__(self: S) -> S:
        return self

    def __deepcopy__(self: S, memo: dict[int, Any]) -> S:
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._settings().items())})"

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # another thread may record while the containers are pickled
            state = {k: v.copy() if isinstance(v, (deque, dict)) else v for k, v in vars(self).items()}
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
