"""The horizon of a run: which controllers a name stands for, and a fresh one for each run."""

import dataclasses
from typing import Any

from eh_gym import HorizonController
from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import is_controller
from eh_gym.horizon.make import HORIZONS, find_controller, make_controller
from harness.settings.environment import GIVEN
from harness.settings.section import Choice


class NamedHorizon:
    """A horizon without settings: what MODULE:CLASS makes, if that is no dataclass, or an object of a Python program.

    Args:
        name: ``"MODULE:CLASS"``, or ``"given:CLASS"`` for the object that was given to ``train(controller=...)``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"NamedHorizon({self.name!r})"


Horizon = HorizonController | NamedHorizon | None
"""The pattern of a run's controller; None for no limit. `new_controller` makes the controller from it."""


def new_controller(horizon: Horizon) -> HorizonController | None:
    """Makes the controller of a run. It is a fresh one, because runs may share the pattern."""
    if isinstance(horizon, NamedHorizon):
        if horizon.name.startswith(GIVEN):
            raise ConfigError(
                f"the horizon of this run came from a {horizon.name.removeprefix(GIVEN)}, which a Python program gave "
                "to train(controller=...); resume it there: train(resume=..., controller=...)"
            )
        return make_controller(horizon.name)
    return None if horizon is None else dataclasses.replace(horizon)  # type: ignore[type-var]


_KINDS: dict[str, type] = {**HORIZONS, "none": type(None)}


def _make(name: str) -> Any:
    if name == "none":
        return None
    if name.startswith(GIVEN):
        return NamedHorizon(name)
    kind = find_controller(name)
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return NamedHorizon(name)
    try:
        return make_controller(name)
    except ConfigError as error:
        raise ConfigError(
            f"--wrapper {name} can't be made without arguments ({error}); give its fields defaults"
        ) from error


def _name_of(horizon: Any) -> str:
    if isinstance(horizon, NamedHorizon):
        return horizon.name
    names = {kind: name for name, kind in _KINDS.items()}
    return names.get(type(horizon), f"{type(horizon).__module__}:{type(horizon).__qualname__}")


def _check(horizon: Any) -> None:
    if horizon is None or isinstance(horizon, NamedHorizon):
        return
    if not is_controller(horizon) or not dataclasses.is_dataclass(horizon):
        raise ConfigError(
            "horizon must be a controller that is a dataclass, such as ElasticHorizon(k0=10), or None, got "
            f"{horizon!r}; give any other controller to train(controller=...)"
        )


HORIZON = Choice(
    flag="wrapper",
    text=f"What sets K: {', '.join(HORIZONS)}, or a controller of your own, MODULE:CLASS. none sets no limit. Its "
    "flags follow.",
    classes=_KINDS,
    make=_make,
    name_of=_name_of,
    check=_check,
)
