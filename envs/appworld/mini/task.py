"""The Task that a generator makes, and how generators are found and numbered.

A generator is a module in ``generators/`` with DIFFICULTY, VARIANTS (three tuples of arguments) and
``make(world, *variant) -> Task``. ``make`` may add records to ``world``, which become part of this task's start state.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .evaluation import Change

__all__ = ["Task", "apps_of", "generators", "task_id"]


@dataclass
class Task:
    """One task, before it is written.

    Attributes:
        supervisor: The first name of the person who asks.
        instruction: The task in the person's words.
        steps: The reference solution, the code of each step.
        wrong: Name -> a plausible solution that must fail. "wrong" misreads the task; "collateral" does the right thing
            and one thing more.
        changes: The changes that the right solution makes. Nothing else may change.
        answer: The answer that complete_task must get; None if the task asks for no answer.
    """

    supervisor: str
    instruction: str
    steps: list[str]
    wrong: dict[str, list[str]]
    changes: Sequence[Change] = ()
    answer: Any = None


def generators() -> dict[str, ModuleType]:
    """Name -> module of every generator, in alphabetical order."""
    package = importlib.import_module(f"{__package__}.generators")
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    return {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}


def task_id(generator: str, number: int) -> str:
    """A task's id in AppWorld's form: seven hexadecimal digits for the generator, an underscore, the variant from 1.

    >>> task_id("spotify_genre_count", 2)
    'a580d43_2'
    """
    return f"{hashlib.sha256(generator.encode()).hexdigest()[:7]}_{number}"


def apps_of(steps: list[str]) -> list[str]:
    """The apps that a solution calls, without api_docs and supervisor.

    >>> apps_of(["apis.supervisor.complete_task()", "apis.venmo.login()"])
    ['venmo']
    """
    found = set(re.findall(r"\bapis\.(\w+)\.", "\n".join(steps)))
    return sorted(found - {"api_docs", "supervisor"})
