"""GRPO training of LLM agents on many environments at once, under any horizon controller.

    from harness import GRPOConfig, train

    result = train(GRPOConfig.recipe("quickstart", updates=20))

Importing this package is fast: the names of `harness.training.public` load other packages when the first one is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from eh_gym.errors import MissingExtraError

if TYPE_CHECKING:
    from harness.training.public import *  # noqa: F403

_NEEDED = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "tyro",
    "rich",
    "tensorboard",
    "matplotlib",
    "pandas",
    "jinja2",
)


def require_packages() -> None:
    """Raises MissingExtraError unless the packages of the extra ``train`` are installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"the harness needs {', '.join(missing)}; run, in a checkout: pip install -e '.[train]'. "
            "The environments and wrappers (import eh_gym) work without"
        )


def __getattr__(name: str) -> Any:
    """Returns a public name, or ``__all__``."""
    if name[0] != "_" or name == "__all__":
        require_packages()
        public = import_module("harness.training.public")
        if name in (*public.__all__, "__all__"):
            return getattr(public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    try:
        return sorted({*globals(), *__getattr__("__all__")})
    except MissingExtraError:
        return sorted(globals())


if sys.argv[0] == "-m":  # what Python says while it looks for the module of `python -m harness.NAME`
    try:
        require_packages()
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
