"""A soft K: a small share of the episodes may go on for some more steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import HorizonController, episode_horizon
from eh_gym.horizon.probed import ProbedHorizon
from eh_gym.horizon.schedules import is_number, positive_int

__all__ = ["SoftHorizon"]


class SoftHorizon(ProbedHorizon):
    """Gives `share` of the episodes one extension: the controller's K plus `extension`, at most `k_max`.

    Turn control (arXiv 2510.16786) limits an agent to the P75 of its turns and grants one extension to an episode that asks for
    it. Here the episode's seed asks, so the agent needs no signal of its progress. `ProbedHorizon` looks far beyond K at a high
    price; an extension looks just beyond it, where the next longer successes are.

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
        if not (is_number(share) and 0 <= share <= 1):
            raise ConfigError(f"share must be in [0, 1], got {share!r}; 0.1 is one episode in ten")
        super().__init__(controller, positive_int("k_max", k_max), share)
        self.extension = positive_int("extension", extension)

    def horizon_for(self, info: Mapping[str, Any], seed: int | None) -> int:
        """The K of one episode, in steps."""
        k = episode_horizon(self.controller, info, seed)
        return max(k, min(k + self.extension, self.probe_k)) if self._drawn(seed) else k

    def _settings(self) -> dict[str, Any]:
        return {"extension": self.extension, "share": self.probe_fraction, "k_max": self.probe_k}

    def __repr__(self) -> str:
        return f"SoftHorizon({self.controller!r}, {', '.join(f'{k}={v!r}' for k, v in self._settings().items())})"
