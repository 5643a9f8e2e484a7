"""GRPO training of LLM agents on many environments at once, under any horizon controller.

    from harness import GRPOConfig, train

    result = train(GRPOConfig.recipe("quickstart", updates=20))

Importing this package is fast: the names load other packages when they are first used.
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
    from harness.settings.environment import Environment
    from harness.settings.grpo import GRPOConfig
    from harness.settings.held_out import Evaluation
    from harness.settings.loss import Loss
    from harness.settings.model import Model
    from harness.settings.optimizer import Optimizer
    from harness.settings.rollout import Rollout
    from harness.settings.run import Run
    from harness.settings.sampling import TransformersSampling, VLLMSampling, VLLMServerSampling
    from harness.settings.warm_start import WarmStart
    from harness.training.api import TrainResult, train

_HOMES = {
    "AgentEnv": "agents.env",
    "Environment": "settings.environment",
    "Evaluation": "settings.held_out",
    "GRPOConfig": "settings.grpo",
    "Loss": "settings.loss",
    "Model": "settings.model",
    "Optimizer": "settings.optimizer",
    "Rollout": "settings.rollout",
    "Run": "settings.run",
    "TrainResult": "training.api",
    "TransformersSampling": "settings.sampling",
    "VLLMSampling": "settings.sampling",
    "VLLMServerSampling": "settings.sampling",
    "WarmStart": "settings.warm_start",
    "evaluate_policy": "evaluation.run",
    "train": "training.api",
}
__all__ = [
    "AgentEnv",
    "Environment",
    "Evaluation",
    "GRPOConfig",
    "Loss",
    "Model",
    "Optimizer",
    "Rollout",
    "Run",
    "TrainResult",
    "TransformersSampling",
    "VLLMSampling",
    "VLLMServerSampling",
    "WarmStart",
    "evaluate_policy",
    "train",
]

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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_packages()
    return getattr(import_module(f"harness.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if sys.argv[0] == "-m":  # what Python says while it looks for the module of `python -m harness.NAME`
    try:
        require_packages()
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
