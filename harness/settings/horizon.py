"""The horizon K: the flags that all horizons share, a group of flags for each one, and the controller that they make."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any

import eh_gym
from eh_gym import HorizonController, KeyedHorizon
from eh_gym.errors import ConfigError
from eh_gym.horizon.elastic import Rounding, Statistic
from eh_gym.horizon.make import HORIZONS
from envs.making import json_object
from harness.settings.command_line import given_flags
from harness.settings.environment import GIVEN
from harness.settings.ranges import Range

__all__ = [
    "ElasticFlags",
    "HorizonFlags",
    "HorizonSettings",
    "LinearFlags",
    "StagedFlags",
    "check_horizon_flags",
    "settings_of",
]


@dataclass(frozen=True)
class HorizonFlags:
    """How many steps an episode may take, and what decides this."""

    wrapper: str = "elastic"
    """What sets K, by the name that eh_gym.make_controller takes: elastic, fixed, linear, multiplicative, staged, task, or a
    controller of your own, MODULE:CLASS. tti is staged with the paper's stages. none sets no limit."""
    wrapper_args: str = "{}"
    """What the horizon takes as a JSON object: all of MODULE:CLASS, such as '{"k0": 5}', and what has no flag: '{"cold_growth":
    0}' (elastic), '{"stage_updates": 50}' (multiplicative), '{"k0": 25, "delta": 2, "threshold": 0.25, "free_every": 0}'
    (task)."""
    k0: int = 15
    """The horizon at the start, in steps; with --wrapper fixed that of the whole run."""
    k_min: int = 5
    """The lower bound of the elastic horizon, in steps. For multiplicative the size of a stage."""
    k_max: int = 50
    """The upper bound of every horizon, in steps, and the K of evaluations."""


@dataclass(frozen=True)
class ElasticFlags:
    """--wrapper elastic: K follows the lengths of the successes."""

    alpha: float = 0.1
    """The weight of the new target in the moving average of K."""
    delta: float = 10.0
    """The headroom above the boundary, in steps."""
    buffer_size: Annotated[int, Range(1, sys.maxsize)] = 100
    """The number of latest successes that are remembered (N)."""
    min_successes: int = 20
    """The number of successes before which K does not move (N_min)."""
    statistic: Statistic = "p90"
    """The statistic of the successes' lengths that is the boundary."""
    rounding: Rounding = "floor"
    """How K is rounded. floor-state also stores the rounded K, as the paper's Algorithm 2 does; then K stalls."""
    horizon_key: str = ""
    """Keep a K for each value of this key in the info of reset, such as category."""


@dataclass(frozen=True)
class LinearFlags:
    """--wrapper linear: K grows by the same number of steps in each update, up to k_max."""

    linear_start: int = 10
    """K at update 0, in steps."""
    linear_increment: float = 0.2
    """The number of steps that K grows by in each update."""


@dataclass(frozen=True)
class StagedFlags:
    """--wrapper staged: K from a table, up to k_max."""

    stages: str = "0:15,50:20,100:30,150:50"
    """UPDATE:K pairs with commas between them. The default is the paper's table for TTI."""


_ELASTIC = ("k0", "k_min", "k_max", "alpha", "delta", "buffer_size", "min_successes", "statistic", "rounding")

# For each controller in HORIZONS: its arguments, and the settings that they are.
_ARGUMENTS: dict[str, dict[str, str]] = {
    "elastic": {name: name for name in _ELASTIC},
    "fixed": {"k0": "k0"},
    "linear": {"k_min": "linear_start", "k_max": "k_max", "delta": "linear_increment"},
    "multiplicative": {name: name for name in ("k_min", "k_max")},
    "staged": {"stages": "stages"},
    "tti": {"stages": "stages"},
    "task": {name: name for name in ("k_min", "k_max")},
}
assert _ARGUMENTS.keys() == HORIZONS.keys()
_WITH_MORE = ("elastic", "multiplicative", "task")  # they take --wrapper-args besides


def settings_of(wrapper: str) -> set[str]:
    """Returns the names of the settings from which `wrapper` makes its K.

    >>> sorted(settings_of("tti")), settings_of("none")
    (['k_max', 'stages'], set())
    """
    more = {"elastic": {"horizon_key"}, "staged": {"k_max"}, "tti": {"k_max"}}.get(wrapper, set())
    return {*_ARGUMENTS.get(wrapper, {}).values()} | more


def check_horizon_flags(words: Sequence[str], wrapper: str, also: Set[str]) -> None:
    """Raises ConfigError for a flag of the command line that another horizon reads, and `wrapper` does not.

    Args:
        words: The command line.
        wrapper: The horizon.
        also: The names of settings that have an effect all the same.
    """
    used = settings_of(wrapper) | also
    for flag, name in given_flags(words).items():
        if name not in used and (readers := [reader for reader in HORIZONS if name in settings_of(reader)]):
            raise ConfigError(f"{flag} is for --wrapper {' or '.join(readers)}, got --wrapper {wrapper}; leave it out")


class HorizonSettings(StagedFlags, LinearFlags, ElasticFlags, HorizonFlags):
    """All flags about the horizon."""

    @property
    def wrapper_name(self) -> str:
        """`wrapper` without its module, for the names of folders."""
        return self.wrapper.rpartition(":")[2]

    def stage_table(self) -> dict[int, int]:
        """`stages` as a table from update to K, with no K above `k_max`."""
        try:
            pairs = [(int(u), int(k)) for u, k in (pair.split(":") for pair in self.stages.split(","))]
        except ValueError as error:
            raise ConfigError(f"stages must be UPDATE:K pairs such as 0:15,50:20, got {self.stages!r}") from error
        if len(dict(pairs)) < len(pairs):
            raise ConfigError(f"stages must name each update once, got {self.stages!r}; leave one out")
        return {update: min(k, self.k_max) for update, k in pairs}

    def controller_args(self) -> dict[str, Any]:
        """`wrapper_args` as a dict."""
        return json_object(self.wrapper_args, "--wrapper-args", '{"k0": 5}')

    def check_horizon(self) -> None:
        """Raises ConfigError if the flags contradict each other or describe no controller."""
        names = (*HORIZONS, "none")
        if self.wrapper not in names and ":" not in self.wrapper:
            raise ConfigError(f"--wrapper must be one of {', '.join(names)}, or MODULE:CLASS, got {self.wrapper!r}")
        if self.wrapper in names and self.wrapper not in _WITH_MORE and self.controller_args():
            raise ConfigError(
                f"--wrapper-args is for --wrapper {', '.join(_WITH_MORE)} and MODULE:CLASS, got --wrapper {self.wrapper}; "
                "it has flags of its own"
            )
        flags = _ARGUMENTS.get(self.wrapper, {})
        for name in self.controller_args():
            if name in flags:
                raise ConfigError(
                    f"{name} has a flag of its own, got --wrapper-args {self.wrapper_args}; give {_flag(name)}"
                )
        if self.wrapper != "elastic" and self.horizon_key:
            raise ConfigError(
                f"--horizon-key is about the elastic horizon, got --wrapper {self.wrapper}; leave one out"
            )
        if self.wrapper == "fixed" and self.k0 > self.k_max:
            raise ConfigError(
                f"k0 must be <= k_max ({self.k_max}), the K of the evaluation, got {self.k0}; raise --k-max, too"
            )
        self.stage_table()
        if not self.wrapper.startswith(GIVEN):
            self.controller()

    def controller(self, *, by_environment: bool = False) -> HorizonController | None:
        """Makes the controller that `wrapper` names; None for "none".

        Args:
            by_environment: Whether an elastic horizon keeps a K for each of the run's environments, unless `horizon_key` names
                another kind.

        Raises:
            ConfigError: A setting is out of range, or the class of MODULE:CLASS can't be imported or made, or the controller is
                an object of a Python program.
        """
        if self.wrapper == "none":
            return None
        name = self.wrapper
        if name.startswith(GIVEN):
            raise ConfigError(
                f"the horizon of this run came from a {name.removeprefix(GIVEN)}, which a Python program gave to "
                "train(controller=...); resume it there: train(resume=..., controller=...)"
            )
        if name not in HORIZONS:
            return eh_gym.make_controller(name, **self.controller_args())
        arguments = _ARGUMENTS[name]
        values = {argument: getattr(self, setting) for argument, setting in arguments.items()}
        if "stages" in values:
            values["stages"] = self.stage_table()
        key = self.horizon_key or ("environment" if by_environment else "")
        make = functools.partial(eh_gym.make_controller, name, **values | self.controller_args())
        try:
            return KeyedHorizon(make, key) if key and name == "elastic" else make()
        except ConfigError as error:
            if flags := _renamed(arguments):
                raise ConfigError(f"{flags}: {error}") from error
            raise


def _renamed(arguments: Mapping[str, str]) -> str:
    """The flags of a controller that calls some of them by another name; empty if their names are the same.

    >>> _renamed({"k_min": "linear_start", "k_max": "k_max"})
    '--linear-start (k_min), --k-max'
    """
    if all(argument == setting for argument, setting in arguments.items()):
        return ""
    return ", ".join(
        _flag(setting) + (f" ({argument})" if argument != setting else "") for argument, setting in arguments.items()
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
