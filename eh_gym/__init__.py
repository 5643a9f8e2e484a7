"""Gymnasium environments for LLM agents, and wrappers that find how many steps an agent really needs.

Importing registers the ``EH-*`` ids and does nothing else: the names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from eh_gym.registration import register_envs

if TYPE_CHECKING:
    from eh_gym import errors as errors
    from eh_gym.horizon import (
        ElasticHorizon,
        EpisodeOutcome,
        FixedHorizon,
        HorizonController,
        KeyedHorizon,
        LinearHorizon,
        MultiplicativeHorizon,
        SharedHorizon,
        StagedHorizon,
        TaskHorizon,
        make_controller,
    )
    from eh_gym.replies import split_reply
    from eh_gym.spaces import UnicodeText
    from eh_gym.vector import ThreadVectorEnv, make_vec
    from eh_gym.wrappers import BudgetHint, ElasticTimeLimit

__all__ = [
    "BudgetHint",
    "ElasticHorizon",
    "ElasticTimeLimit",
    "EpisodeOutcome",
    "FixedHorizon",
    "HorizonController",
    "KeyedHorizon",
    "LinearHorizon",
    "MultiplicativeHorizon",
    "SharedHorizon",
    "StagedHorizon",
    "TaskHorizon",
    "ThreadVectorEnv",
    "UnicodeText",
    "errors",
    "make_controller",
    "make_vec",
    "split_reply",
]

_HOME = {
    "BudgetHint": "eh_gym.wrappers",
    "ElasticHorizon": "eh_gym.horizon",
    "ElasticTimeLimit": "eh_gym.wrappers",
    "EpisodeOutcome": "eh_gym.horizon",
    "FixedHorizon": "eh_gym.horizon",
    "HorizonController": "eh_gym.horizon",
    "KeyedHorizon": "eh_gym.horizon",
    "LinearHorizon": "eh_gym.horizon",
    "MultiplicativeHorizon": "eh_gym.horizon",
    "SharedHorizon": "eh_gym.horizon",
    "StagedHorizon": "eh_gym.horizon",
    "TaskHorizon": "eh_gym.horizon",
    "ThreadVectorEnv": "eh_gym.vector",
    "UnicodeText": "eh_gym.spaces",
    "make_controller": "eh_gym.horizon",
    "make_vec": "eh_gym.vector",
    "split_reply": "eh_gym.replies",
}


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use (PEP 562)."""
    if name == "errors":
        return importlib.import_module("eh_gym.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'eh_gym' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The module's own names and the public ones not imported yet."""
    return sorted({*globals(), *__all__})


register_envs()
