"""make_controller: makes a controller from its name."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from eh_gym.checked import said_by
from eh_gym.errors import ConfigError, EHError, UserCodeError
from eh_gym.horizon.controller import HorizonController, is_controller
from eh_gym.horizon.elastic import ElasticHorizon
from eh_gym.horizon.schedules import FixedHorizon, LinearHorizon, MultiplicativeHorizon, StagedHorizon, TTIHorizon
from eh_gym.horizon.task import TaskHorizon
from eh_gym.ranges import near

HORIZONS: dict[str, type[HorizonController]] = {
    "elastic": ElasticHorizon,
    "fixed": FixedHorizon,
    "linear": LinearHorizon,
    "multiplicative": MultiplicativeHorizon,
    "staged": StagedHorizon,
    "tti": TTIHorizon,
    "task": TaskHorizon,
}
"""The controllers of this project by name: dataclasses whose fields are their arguments."""


def make_controller(name: str, **settings: Any) -> HorizonController:
    """Makes a controller from its name.

    Args:
        name: One of `HORIZONS`, such as ``"elastic"``; or ``"MODULE:CLASS"``, for a function too.
        **settings: The arguments of the class.

    Raises:
        ConfigError: The name or a setting is wrong, or the result is not a controller.
        UserCodeError: The class raised something else than an `EHError`.

    >>> make_controller("fixed", k0=15), make_controller("eh_gym.horizon:FixedHorizon", k0=15)
    (FixedHorizon(k0=15), FixedHorizon(k0=15))
    """
    make = find_controller(name)
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} can't be called ({error}); name a class or a function") from error
    try:
        signature.bind(**settings)
    except TypeError as error:
        wrong = sorted(settings.keys() - signature.parameters)
        hint = near(wrong[0], signature.parameters) if wrong else ""
        raise ConfigError(f"{name} takes {', '.join(signature.parameters)}, got {settings} ({error}){hint}") from error
    try:
        made = make(**settings)
    except EHError:
        raise
    except Exception as error:
        raise UserCodeError(f"{name} can't be made: its code raised {said_by(error)}") from error
    if not is_controller(made):
        raise ConfigError(
            f"{name} made {made!r}, which is not a controller; it needs horizon, record, update, state_dict and "
            "load_state_dict"
        )
    return made


def find_controller(name: str) -> Callable[..., Any]:
    """Returns the class or function that a controller's name stands for. Raises as `find_class` does."""
    return find_class(name, HORIZONS, "controller")


def find_class(name: str, classes: Mapping[str, type], what: str) -> Callable[..., Any]:
    """Returns the class or function that a name stands for.

    Args:
        name: One of `classes`, or ``"MODULE:CLASS"``.
        classes: The classes of this project, by name.
        what: What is named, for messages.

    Raises:
        ConfigError: The name is wrong, or the module can't be imported.
    """
    if name in classes:
        return classes[name]
    module, _, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not module or not attribute:
        raise ConfigError(f"a {what}'s name must be one of {', '.join(classes)}, or MODULE:CLASS, got {name!r}")
    try:
        make: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # ./name and ..name raise the last two
        raise ConfigError(
            f"{name} can't be imported ({error}); the module must be installed or in this folder"
        ) from error
    return make
