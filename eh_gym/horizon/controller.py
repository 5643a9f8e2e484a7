"""What every horizon controller offers, and what an episode tells it.

Left out: any base class with behaviour. A controller is whatever has these five members.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

from eh_gym.errors import ConfigError

__all__ = ["EpisodeOutcome", "HorizonController", "check_outcome", "episode_horizon", "is_controller", "is_whole"]


@dataclass(frozen=True)
class EpisodeOutcome:
    """How one finished episode ended.

    Attributes:
        length: Steps taken, in 1..horizon.
        horizon: The K that the episode was given at its reset, >= 1.
        success: The environment's own verdict. A truncated episode is a success only in tasks of survival; see
            `ElasticTimeLimit`.
        truncated: Stopped by K (or by the environment's own truncation) rather than ended by the task's rules.
        task_id: The task, where the environment names it.
        tokens: The tokens that the agent wrote and read after the first prompt, >= 1; None where nobody counts them.
        info: What the environment's reset said of the episode; empty where nobody kept it. Not compared, not shown.

    Raises:
        ConfigError: No episode can have ended so, such as one of 0 steps, or of more steps than its K.
    """

    length: int
    horizon: int
    success: bool
    truncated: bool = False
    task_id: str | None = None
    tokens: int | None = field(default=None, kw_only=True)
    info: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not is_whole(self.horizon) or self.horizon < 1:
            raise ConfigError(f"horizon must be the episode's K, a whole number >= 1, got {self.horizon!r}")
        if not is_whole(self.length) or not 1 <= self.length <= self.horizon:
            raise ConfigError(
                f"length must be a whole number of steps in 1..horizon ({self.horizon}), got {self.length!r}; count the "
                "calls of step() since the reset, and give the K that the episode had at its reset"
            )
        if self.tokens is not None and (not is_whole(self.tokens) or self.tokens < 1):
            raise ConfigError(
                f"tokens must be a whole number >= 1, or None, got {self.tokens!r}; count them or leave them out"
            )
        if self.task_id is not None and not isinstance(self.task_id, str):
            raise ConfigError(f"task_id must be a text, or None, got {self.task_id!r}; pass str(...)")
        for name in ("success", "truncated"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ConfigError(f"{name} must be True or False, got {getattr(self, name)!r}; decide it before")


@runtime_checkable
class HorizonController(Protocol):
    """Decides how many steps the next episodes may take.

    A controller that does not give all of them the same has one method more, ``horizon_for(info, seed) -> int``; see
    `episode_horizon`. One that is no use as a copy in another process says in ``made_in`` which process made it
    (``os.getpid()`` in its ``__init__``); `ElasticTimeLimit` then warns where a copy records.
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


def check_outcome(outcome: object) -> EpisodeOutcome:
    """`outcome`, if it is an EpisodeOutcome; for `record`, which is called by other people's code."""
    if not isinstance(outcome, EpisodeOutcome):
        raise ConfigError(
            f"record() takes an eh_gym.EpisodeOutcome, got {outcome!r}; "
            "pass EpisodeOutcome(length=9, horizon=15, success=True)"
        )
    return outcome


def is_whole(value: object) -> bool:
    """Whether `value` is a whole number, numpy's included."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_controller(value: object) -> TypeGuard[HorizonController]:
    """Whether `value` has a controller's five members, and is no class that has them."""
    return isinstance(value, HorizonController) and not isinstance(value, type)
