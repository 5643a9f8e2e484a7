"""Whether `envs` and `harness` are this project's own packages. Both names are common, and Python takes the first that it finds.

A folder `envs/` in the current folder hides ours. A distribution that has a package of the same name, such as PyPI's
`envs`, is installed into the same folder as ours, and each overwrites files of the other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

__all__ = ["shadow", "sharers"]

DISTRIBUTION = "elastic-horizon"
_FILES = {"envs": "runtime", "harness": "grpo"}  # one of each
_ROOT = Path(__file__).resolve().parents[1]


def shadow(name: str) -> str:
    """Returns what hides this project's package `name`, "envs" or "harness", and how to fix it, or "" if nothing does."""
    spec = find_spec(name)
    if spec is None or _reached(f"{name}.{_FILES[name]}", spec.submodule_search_locations or []):
        return ""
    found = spec.origin if spec.submodule_search_locations is None else next(iter(spec.submodule_search_locations))
    return (
        f"the package {name!r} is imported from {found}, not from {_ROOT / name}, where Elastic Horizon's is; rename the folder, "
        "work in another one, or keep the current folder off the path: with python -P, or PYTHONSAFEPATH=1 (Python 3.11)"
    )


def sharers(name: str) -> list[str]:
    """Returns the other distributions that have files in the folder of this project's package `name`."""
    ours = _ROOT / name
    here = [found for found in distributions() if Path(str(found.locate_file(name))).resolve() == ours]
    owners = {found.metadata["Name"] for found in here if any(file.parts[0] == name for file in found.files or ())}
    return sorted(owners - {DISTRIBUTION})


def _reached(module: str, path: Sequence[str]) -> bool:
    """Whether Python finds this project's file of a submodule. An editable installation finds it behind a foreign package too."""
    specs = (finder.find_spec(module, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next((spec for spec in specs if spec is not None), None)
    return spec is not None and Path(spec.origin or "").resolve() == _ROOT / f"{module.replace('.', '/')}.py"
