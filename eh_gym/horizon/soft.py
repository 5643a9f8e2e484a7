"""A soft K: a small share of the episodes may go on for some more steps."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, episode_horizon, is_controller, is_whole
from eh_gym.horizon.schedules import check_state, is_number, positive_int

__all__ = ["SoftHorizon"]


class SoftHorizon:
    """Gives `share` of the episodes one extension: the controller's K plus `extension`, at most `k_max`.

    Turn control (arXiv 2510.16786) limits an agent to the P75 of its turns and grants one extension to an episode that asks for
    it. Here the episode's seed asks, so the agent needs no signal of its progress, and an episode that is played again has the
    same K. An episode that is reset without a seed takes the next draw of a sequence of its own. An extension looks just beyond
    K, where the next longer successes are.

    Args:
        controller: Decides K. It hears every outcome, with the K that the episode had.
        extension: The further steps, >= 1.
        share: The share of the episodes that get them, in [0, 1].
        k_max: The most steps with the extension; the controller's own K may be above it.

    Raises:
        ConfigError: An argument is out of range.

    >>> from eh_gym.horizon import FixedHorizon
    >>> soft = SoftHorizon(FixedHorizon(10), extension=5, share=0.25)
    >>> [soft.horizon_for({}, seed) for seed in range(12)]
    [10, 15, 10, 10, 10, 10, 15, 10, 10, 10, 15, 15]
    """

    def __init__(self, controller: HorizonController, extension: int = 5, share: float = 0.1, k_max: int = 50) -> None:
        if not is_controller(controller):
            raise ConfigError(f"controller must be a HorizonController, got {controller!r}; pass ElasticHorizon()")
        if not (is_number(share) and 0 <= share <= 1):
            raise ConfigError(f"share must be in [0, 1], got {share!r}; 0.1 is one episode in ten")
        self.made_in = os.getpid()
        self.controller = controller
        self.extension = positive_int("extension", extension)
        self.share = float(share)
        self.k_max = positive_int("k_max", k_max)
        self._unseeded = 0
        self._lock = threading.Lock()

    @property
    def horizon(self) -> int:
        """The K of an episode that starts now and gets no extension, in steps."""
        return self.controller.horizon

    def horizon_for(self, info: Mapping[str, Any], seed: int | None) -> int:
        """The K of one episode, in steps."""
        k = episode_horizon(self.controller, info, seed)
        return max(k, min(k + self.extension, self.k_max)) if self._drawn(seed) else k

    def record(self, outcome: EpisodeOutcome) -> None:
        """Tells the controller. Thread-safe."""
        self.controller.record(outcome)

    def update(self) -> dict[str, float]:
        """Moves the controller's K once; its metrics."""
        return self.controller.update()

    def state_dict(self) -> dict[str, Any]:
        """The controller's state, and how many episodes came without a seed."""
        return {
            "kind": type(self).__name__,
            "settings": self._settings(),
            "controller": self.controller.state_dict(),
            "unseeded": self._unseeded,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state`.

        Raises:
            StateError: `state` comes from another kind of controller or from other settings, or was edited.
        """
        check_state(state, type(self).__name__, self._settings(), {"controller", "unseeded"})
        if not is_whole(state["unseeded"]) or state["unseeded"] < 0:
            raise StateError(f"unseeded must be a whole number >= 0, got {state['unseeded']!r}; the state was edited")
        self.controller.load_state_dict(state["controller"])
        self._unseeded = state["unseeded"]

    def _drawn(self, seed: int | None) -> bool:
        """Whether the episode of this seed is one of the share."""
        if seed is None:
            with self._lock:
                name = f"unseeded {self._unseeded}"
                self._unseeded += 1
        else:
            name = f"seed {int(seed)}"
        # With another `person`, other seeds would get the extension, also in runs that go on.
        drawn = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, person=b"eh-probe").digest(), "little")
        return drawn < self.share * 2**64

    def _settings(self) -> dict[str, Any]:
        return {"extension": self.extension, "share": self.share, "k_max": self.k_max}

    def __repr__(self) -> str:
        return f"SoftHorizon({self.controller!r}, {', '.join(f'{k}={v!r}' for k, v in self._settings().items())})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
