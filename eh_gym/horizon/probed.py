"""A small share of the episodes runs at a K of its own, so that successes longer than the controller's K can be seen.

Left out: weights. Each outcome carries its K, and `ElasticHorizon(estimator="product-limit")` weighs by it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, episode_horizon, is_controller, is_whole
from eh_gym.horizon.schedules import check_state, is_number, positive_int

__all__ = ["ProbedHorizon"]


class ProbedHorizon:
    """Gives `probe_fraction` of the episodes the budget `probe_k`, whatever the controller's K is.

    A controller that hears of successes up to K alone can rest below a gap in the lengths that tasks need, for good. Probes
    look beyond it. Whether an episode is one is decided by its seed alone, so that an episode that is played again has the
    same K; an episode reset without a seed takes the next draw of a sequence of its own.

    Args:
        controller: Decides K for the others. It hears every outcome, with the K that the episode had. Use an
            `ElasticHorizon` with ``estimator="product-limit"``: to the paper's estimator a long success counts as one of
            many although few episodes could have shown it.
        probe_k: K of the probes, such as k_max.
        probe_fraction: Their share, in [0, 1].

    Raises:
        ConfigError: An argument is out of range.

    >>> from eh_gym.horizon import FixedHorizon
    >>> probed = ProbedHorizon(FixedHorizon(10), probe_k=50, probe_fraction=0.25)
    >>> [probed.horizon_for({}, seed) for seed in range(12)]
    [10, 50, 10, 10, 10, 10, 50, 10, 10, 10, 50, 50]
    """

    def __init__(self, controller: HorizonController, probe_k: int, probe_fraction: float) -> None:
        if not is_controller(controller):
            raise ConfigError(f"controller must be a HorizonController, got {controller!r}; pass ElasticHorizon()")
        if not (is_number(probe_fraction) and 0 <= probe_fraction <= 1):
            raise ConfigError(
                f"probe_fraction must be in [0, 1], got {probe_fraction!r}; 0.125 is one episode in eight"
            )
        self.made_in = os.getpid()
        self.controller = controller
        self.probe_k = positive_int("probe_k", probe_k)
        self.probe_fraction = float(probe_fraction)
        self._unseeded = 0
        self._lock = threading.Lock()

    @property
    def horizon(self) -> int:
        """The K of an episode that starts now and is no probe, in steps."""
        return self.controller.horizon

    def horizon_for(self, info: Mapping[str, Any], seed: int | None) -> int:
        """The K of one episode: `probe_k` for a probe."""
        return self.probe_k if self._drawn(seed) else episode_horizon(self.controller, info, seed)

    def _drawn(self, seed: int | None) -> bool:
        """Whether the episode of this seed is one of the share."""
        if seed is None:
            with self._lock:
                name = f"unseeded {self._unseeded}"
                self._unseeded += 1
        else:
            name = f"seed {int(seed)}"
        drawn = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, person=b"eh-probe").digest(), "little")
        return drawn < self.probe_fraction * 2**64

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

    def _settings(self) -> dict[str, Any]:
        return {"probe_k": self.probe_k, "probe_fraction": self.probe_fraction}

    def __repr__(self) -> str:
        return f"ProbedHorizon({self.controller!r}, probe_k={self.probe_k}, probe_fraction={self.probe_fraction})"

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
