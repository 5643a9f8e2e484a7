"""Recipes: TOML files of settings. Those of this project have names; a file of your own has a path.

A recipe has the settings in which a kind of run differs from the paper. The others have the fields' defaults. Keys,
types and values are checked before anything runs. A recipe cannot include another one.
"""

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from eh_gym.ranges import near

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAPER = "paper"
"""The name of the recipe that has nothing: the fields' own defaults."""

QUICKSTART = "quickstart"
"""The recipe of a run that names none."""


def recipes() -> dict[str, Path]:
    home = Path(__file__).parents[1]
    folder = next(path for path in (home / "recipes", home.parent / "recipes") if path.is_dir())
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def recipe_file(name: str | Path) -> Path | None:
    """Returns the file of a recipe; None for "paper". A `name` with a slash in it, or that ends in .toml, is a path."""
    if str(name) == PAPER:
        return None
    known = recipes()
    if str(name) in known:
        return known[str(name)]
    path = Path(name)
    if path.suffix != ".toml" and len(path.parts) < 2:
        raise ConfigError(f"no recipe {name}{near(str(name), [PAPER, *known])}; a file ends in .toml")
    if not path.is_file():
        files = {file.stem: str(file) for file in sorted(path.parent.glob("*.toml"))}
        ours = {one: one for one in (PAPER, *known)}
        there = {**ours, **files, **ours}  # by name: the ends are all alike, and so are long paths
        close = difflib.get_close_matches(path.stem, there, n=1)
        said = f"did you mean {there[close[0]]}?" if close else f"there are {', '.join(there.values())}"
        raise ConfigError(f"no recipe {path}; {said}")
    return path


def read_recipe(name: str | Path) -> Mapping[str, Any]:
    path = recipe_file(name)
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} can't be read as TOML: {error}") from error
    if "out" in table:
        raise ConfigError(f"{path}: out is for one run, not for a recipe; give --out")
    return table
