"""What every horizon controller offers, and what an episode tells it.

Left out: any base class with behaviour. A controller is whatever has these five members.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

from eh_gym.errors import ConfigError

__all__ = ["EpisodeOutcome", "HorizonController", "episode_horizon", "is_controller"]


@dataclass(frozen=True)
class EpisodeOutcome:
    """How one finished episode ended.

    Attributes:
        length: Steps taken, >= 1.
        horizon: The K that the episode was given at its reset, >= 1.
        success: The environment's own verdict; False for every truncated episode.
        truncated: Stopped by K (or by the environment's own truncation) rather than ended by the task's rules.
        task_id: The task, where the environment names it.
        info: What the environment's reset said of the episode; empty where nobody kept it. Not compared, not shown.
    """

    length: int
    horizon: int
    success: bool
    truncated: bool = False
    task_id: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@runtime_checkable
class HorizonController(Protocol):
    """Decides how many steps the next episodes may take.

    A controller that does not give all of them the same has one method more, ``horizon_for(info, seed) -> int``; see
    `episode_horizon`.
    """

    @property
    def horizon(self) -> int:
        """The budget K that an episode starting now gets, in steps."""
        ...

    def record(self, outcome: EpisodeOutcome) -> None:
        """Tells the controller how an episode ended. Thread-safe."""
        ...

    def update(self) -> dict[str, float]:
        """Moves K once; called once per training step. Returns metrics named ``horizon/...``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly here, as JSON-serialisable values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from ``state``; raises StateError if it was not made by this kind of controller."""
        ...


def episode_horizon(controller: HorizonController, info: Mapping[str, Any], seed: int | None) -> int:
    """The budget K of one episode that starts now, in steps.

    Args:
        controller: If it has a method ``horizon_for``, that decides; else its `horizon` does.
        info: What the environment's reset said of the episode, such as its ``task_id``.
        seed: What the reset got. The same info and seed give the same K until the next update.

    Raises:
        ConfigError: What the controller says is no whole number >= 1. NaN and infinity would never stop an episode.
    """
    decide = getattr(controller, "horizon_for", None)
    k = controller.horizon if decide is None else decide(info, seed)
    if not isinstance(k, numbers.Integral) or k < 1:
        source = "horizon" if decide is None else "horizon_for()"
        raise ConfigError(
            f"the {source} of {controller!r} must be a whole number of steps >= 1, got {k!r}; round it there"
        )
    return int(k)


def is_controller(value: object) -> TypeGuard[HorizonController]:
    """Whether `value` has a controller's five members, and is no class that has them."""
    return isinstance(value, HorizonController) and not isinstance(value, type)
