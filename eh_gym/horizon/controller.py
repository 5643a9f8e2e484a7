"""The protocol of a horizon controller, and the outcome of an episode."""

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

from eh_gym.errors import ConfigError

_FLAG = (bool, np.bool_)
HorizonFor = Callable[[Mapping[str, Any], int | None], int]
"""The optional method ``horizon_for(info, seed)`` of a controller, which gives each episode its own K."""


@dataclass
class EpisodeOutcome:
    """How one finished episode ended.

    Attributes:
        length: The number of steps taken, in 1..horizon.
        horizon: The K that the episode was given at its reset, >= 1.
        success: The environment's verdict. A truncated episode succeeds only in tasks of survival; see
            `ElasticTimeLimit`.
        truncated: Whether K or the environment's own limit stopped the episode.
        task_id: The task, if the environment names it.
        info: The info of the environment's reset; may be empty. It is not compared.

    Raises:
        ConfigError: The values are impossible, such as 0 steps, or more steps than K.
    """

    length: int
    horizon: int
    success: bool
    truncated: bool = False
    task_id: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not is_whole(self.horizon) or self.horizon < 1:
            raise ConfigError(f"horizon must be the episode's K, a whole number >= 1, got {self.horizon!r}")
        if not is_whole(self.length) or not 1 <= self.length <= self.horizon:
            raise ConfigError(
                f"length must be a whole number of steps in 1..horizon ({self.horizon}), got {self.length!r}; count "
                "the calls of step() since the reset, and give the K that the episode had at its reset"
            )
        if self.task_id is not None and not isinstance(self.task_id, str):
            raise ConfigError(f"task_id must be a text, or None, got {self.task_id!r}; pass str(...)")
        for name in ("success", "truncated"):
            if not isinstance(getattr(self, name), _FLAG):
                raise ConfigError(f"{name} must be True or False, got {getattr(self, name)!r}; pass a bool")


@runtime_checkable
class HorizonController(Protocol):
    """Decides how many steps the next episodes may take. Any object with these five members is a controller.

    Optional members: ``horizon_for(info, seed) -> int`` gives each episode its own K (see `episode_horizon`), and those
    of `ReadsInfo` and `MadeIn`.
    """

    @property
    def horizon(self) -> int:
        """The K of an episode that starts now, in steps."""
        ...

    def record(self, outcome: EpisodeOutcome) -> None:
        """Tells the controller how an episode ended. Thread-safe."""
        ...

    def update(self) -> dict[str, float]:
        """Moves K; called once per training step. Returns metrics named ``horizon/...``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue, as JSON-serialisable values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from ``state``; raises StateError if another kind of controller made it."""
        ...


@runtime_checkable
class ReadsInfo(Protocol):
    """A controller whose `record` reads these keys of an outcome's info."""

    info_keys: tuple[str, ...]


@runtime_checkable
class MadeIn(Protocol):
    """A controller that keeps ``os.getpid()`` from its ``__init__``.

    `ElasticTimeLimit` warns if a copy in another process records outcomes.
    """

    made_in: int


def per_episode_rule(controller: HorizonController) -> HorizonFor | None:
    """The controller's method ``horizon_for``; None if all of its episodes have one K."""
    method: HorizonFor | None = getattr(controller, "horizon_for", None)
    return method


def episode_horizon(controller: HorizonController, info: Mapping[str, Any], seed: int | None) -> int:
    """The K of one episode that starts now, in steps: the controller's ``horizon_for``, or else its `horizon`.

    Args:
        controller: Decides K.
        info: The info of the environment's reset, such as its ``task_id``.
        seed: The seed of the reset. The same info and seed give the same K until the next update.

    Raises:
        ConfigError: The controller's answer is not a whole number >= 1.
    """
    decide = per_episode_rule(controller)
    k = controller.horizon if decide is None else decide(info, seed)
    if type(k) is int and k > 0:
        return k
    if not is_whole(k) or k < 1:
        source = "horizon" if decide is None else "horizon_for()"
        raise ConfigError(
            f"the {source} of {controller!r} must be a whole number of steps >= 1, got {k!r}; round it there"
        )
    return int(k)


def kind_in(info: Mapping[str, Any], key: str) -> str:
    """The task's kind in a reset's info, or a ConfigError if it has no such key."""
    if key not in info:
        raise ConfigError(
            f"the reset's info has no {key!r} to tell the task's kind by (it has {sorted(info)}); choose another key"
        )
    return str(info[key])


def check_outcome(outcome: object) -> EpisodeOutcome:
    """Returns `outcome`, or raises a ConfigError if it is not an EpisodeOutcome."""
    if not isinstance(outcome, EpisodeOutcome):
        raise ConfigError(
            f"record() takes an eh_gym.EpisodeOutcome, got {outcome!r}; pass EpisodeOutcome(length=9, horizon=15, "
            "success=True)"
        )
    return outcome


def is_whole(value: object) -> bool:
    """Whether `value` is a whole number, numpy's included."""
    # The check of an abstract class takes ten times as long.
    return type(value) is int or (isinstance(value, numbers.Integral) and not isinstance(value, bool))


def is_controller(value: object) -> TypeGuard[HorizonController]:
    """Whether `value` has a controller's five members. A class that has them does not count."""
    return isinstance(value, HorizonController) and not isinstance(value, type)


def check_controller(controller: object) -> None:
    """Raises a ConfigError if this is not a controller."""
    if not is_controller(controller):
        raise ConfigError(
            f"controller must have horizon, record, update, state_dict and load_state_dict, got {controller!r}; "
            "eh_gym.FixedHorizon(K) is the simplest"
        )
