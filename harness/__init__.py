"""GRPO training of LLM agents on many environments at once, under any horizon controller.

    from harness import GRPOConfig, train

    result = train(GRPOConfig(env="EH-Cabinet-v0", wrapper="elastic", updates=20))

Importing this package loads no other: the names load what they need when they are first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from eh_gym.errors import MissingExtraError

if TYPE_CHECKING:
    from harness.agents.env import AgentEnv
    from harness.evaluation.run import evaluate_policy
    from harness.settings.grpo import GRPOConfig
    from harness.settings.warm_start import WarmStart
    from harness.training.api import TrainResult, train

__all__ = ["AgentEnv", "GRPOConfig", "TrainResult", "WarmStart", "evaluate_policy", "train"]

_HOMES = {
    "AgentEnv": "harness.agents.env",
    "GRPOConfig": "harness.settings.grpo",
    "TrainResult": "harness.training.api",
    "WarmStart": "harness.settings.warm_start",
    "evaluate_policy": "harness.evaluation.run",
    "train": "harness.training.api",
}
_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "tyro", "rich", "tensorboard", "matplotlib", "jinja2")


def require_packages() -> None:
    """Raises MissingExtraError unless the packages of the extra ``train`` are installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"the harness needs {', '.join(missing)}; run, in a checkout: pip install -e '.[train]'. "
            "The environments and wrappers (import eh_gym) work without"
        )


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_packages()
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if sys.argv[0] == "-m":  # what Python says while it looks for the module of `python -m harness.NAME`
    try:
        require_packages()
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
