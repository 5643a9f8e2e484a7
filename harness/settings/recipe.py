"""Recipes: TOML files of settings, one for each published setting. A nested group of settings is a table.

Keys and types are checked against the settings' dataclass before anything runs. The settings themselves check the values. A
recipe cannot include another one.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from eh_gym.errors import ConfigError
from harness.settings.ranges import expected

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_recipe", "with_recipe"]

T = TypeVar("T")

_ONE_RUN = ("recipe", "resume", "out")  # they belong to one run, so they are only flags


def read_recipe(path: Path, settings: type) -> dict[str, Any]:
    """Reads the settings that a recipe gives.

    Args:
        path: A TOML file. Its keys are the fields of `settings`, and a nested dataclass is a table.
        settings: The dataclass.

    Raises:
        ConfigError: The file does not exist or is not TOML, or a key or a type is wrong. The message names the file, the key
            and the most similar known key.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        there = sorted(p.name for p in path.parent.glob("*.toml"))
        near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.4) or there
        hint = f"; {path.parent} has {', '.join(near)}" if near else ""
        raise ConfigError(f"no recipe {path}{hint}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} can't be read as TOML: {error}") from error
    return _checked(values, settings, path, "")


def with_recipe(config: T, values: Mapping[str, Any], path: Path) -> T:
    """Returns `config` with the settings of a recipe in place of its own; the error message names `path`.

    Raises:
        ConfigError: A value is wrong.
    """
    try:
        return _replaced(config, values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _replaced(config: T, values: Mapping[str, Any]) -> T:
    nested = {k: _replaced(getattr(config, k), v) for k, v in values.items() if isinstance(v, Mapping)}
    return dataclasses.replace(config, **{**values, **nested})  # type: ignore[type-var]


def _checked(values: Mapping[str, Any], settings: type, path: Path, table: str) -> dict[str, Any]:
    hints = get_type_hints(settings)
    known = [f.name for f in dataclasses.fields(settings) if f.name not in _ONE_RUN]
    checked: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{table}{key}"
        if key in _ONE_RUN and not table:
            raise ConfigError(f"{path}: {name} is for one run, not for a recipe; give it as --{key.replace('_', '-')}")
        if key not in known:
            near = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
            hint = f"did you mean {table}{near[0]}?" if near else f"it must be one of {', '.join(known)}"
            raise ConfigError(f"{path}: unknown key {name!r}; {hint}")
        hint = hints[key]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{path}: {name} must be a table, [{name}], got {value!r}")
            checked[key] = _checked(value, hint, path, f"{name}.")
            continue
        if wanted := expected(hint, value):
            raise ConfigError(f"{path}: {name} must be {wanted}, got {value!r}")
        checked[key] = float(value) if hint is float else value
    return checked
