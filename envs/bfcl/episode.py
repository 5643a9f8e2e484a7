"""One BFCL episode by the official rules, with the official verdict.

A turn is a user message and the steps that follow it; a step is one message of the agent with any number of calls. A
message without a call ends the turn. More than 20 executed steps in a turn end the entry. At the end of each turn whose
ground truth is not empty: at least one step was executed, every public attribute of every simulator equals the ground
truth's, and the ground truth's results of the turn are among all results so far. The verdict is the AND over turns.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .calls import FORMATS, DecodeError, to_hermes, to_python
from .data import Entry, load_entry
from .execution import execute

__all__ = ["Episode", "StepResult", "instruction", "task_of"]

STEP_LIMIT = 20  # bfcl_eval.constants.default_prompts.MAXIMUM_STEP_LIMIT
REVEAL = "I have updated some more functions you can choose from. What about now?"
END_OF_TURN = "Done."  # holds no call in either format
_STEPS_PER_TURN = 18  # the expert packs several calls into a step where a turn has more calls than this


@dataclass(frozen=True)
class Task:
    """What all episodes of an entry share.

    Attributes:
        entry: The entry.
        start: The simulators at the start, pickled; loading is faster than building, and nothing is shared.
        checks: Of each turn the ground truth's results and its simulators' public attributes; None for an empty one.
    """

    entry: Entry
    start: bytes
    checks: tuple[tuple[Counter[str], dict[str, dict[str, Any]]] | None, ...]


@dataclass(frozen=True)
class StepResult:
    """What one message of the agent led to.

    Attributes:
        observation: Results, or the next user message.
        done: The episode is over.
        success: The verdict, once it is over.
        turn: Index of the present user turn.
        calls: Calls executed by this message.
        malformed: The message looks like calls but is none.
        failure: The first failed check, as (turn, kind), or None.
    """

    observation: str
    done: bool
    success: bool
    turn: int
    calls: int
    malformed: bool
    failure: tuple[int, str] | None


class Episode:
    """A running episode.

    Args:
        task_id: The official entry id.
        action_format: "python" or "hermes".
    """

    def __init__(self, task_id: str, action_format: str) -> None:
        self._task = task_of(task_id)
        self._format = action_format
        self._simulators: dict[str, Any] = pickle.loads(self._task.start)
        self._methods = _methods(self._simulators)
        self._turn = 0
        self._steps = 0  # executed in this turn
        self._results: Counter[str] = Counter()
        self._failure: tuple[int, str] | None = None

    @property
    def first_message(self) -> str:
        """What the user says first."""
        return self._user_message()

    def step(self, action: str) -> StepResult:
        """Carries out one message of the agent."""
        try:
            calls = FORMATS[self._format](action)
        except DecodeError:
            calls = []
        if not calls:
            malformed = ("[" in action and "(" in action) if self._format == "python" else "<tool_call>" in action
            return self._end_turn(malformed)
        results = [execute(call, self._methods) for call in calls]
        self._results.update(results)
        self._steps += 1
        observation = self._show(results)
        if self._steps > STEP_LIMIT:  # the 21st has still run
            self._check_turn()
            if self._turn < len(self._task.entry.turns) - 1:
                self._fail("step_limit")
            return self._result(observation, done=True, calls=len(calls))
        return self._result(observation, done=False, calls=len(calls))

    def expert(self) -> str:
        """The ground truth's next message: one call a step where the turn has few, then a message without a call."""
        calls = list(self._task.entry.ground_truth[self._turn]) if self._turn < len(self._task.entry.turns) else []
        per_step = -(-len(calls) // _STEPS_PER_TURN) or 1
        due = calls[self._steps * per_step : (self._steps + 1) * per_step]
        if not due:
            return END_OF_TURN
        return (to_python if self._format == "python" else to_hermes)(due, self._methods)

    def _end_turn(self, malformed: bool) -> StepResult:
        self._check_turn()
        self._turn += 1
        self._steps = 0
        done = self._turn >= len(self._task.entry.turns)
        observation = "The conversation is over." if done else self._user_message()
        return self._result(observation, done=done, calls=0, malformed=malformed)

    def _check_turn(self) -> None:
        check = self._task.checks[self._turn]
        if self._failure is not None or check is None:
            return
        results, states = check
        if self._steps == 0:
            self._fail("no_call")
        elif not self._same(states):
            self._fail("wrong_state")
        elif results - self._results:
            self._fail("missing_result")

    def _same(self, states: dict[str, dict[str, Any]]) -> bool:
        """Whether every public attribute of the ground truth's simulators has its value here."""
        return all(
            getattr(self._simulators[name], key) == value
            for name, state in states.items()
            for key, value in state.items()
        )

    def _fail(self, kind: str) -> None:
        self._failure = self._failure or (self._turn, kind)

    def _result(self, observation: str, *, done: bool, calls: int, malformed: bool = False) -> StepResult:
        success = done and self._failure is None
        return StepResult(observation, done, success, self._turn, calls, malformed, self._failure if done else None)

    def _user_message(self) -> str:
        revealed = self._task.entry.held_out.get(self._turn)
        if revealed is None:
            return self._task.entry.turns[self._turn]
        return "\n".join([*(json.dumps(d, separators=(",", ":")) for d in map(compact_document, revealed)), REVEAL])

    def _show(self, results: list[str]) -> str:
        if self._format == "hermes":
            return "\n".join(f"<tool_response>\n{r}\n</tool_response>" for r in results)
        return "\n".join(results)


@functools.cache
def task_of(task_id: str) -> Task:
    """Builds an entry's start state and replays its ground truth, once."""
    entry = load_entry(task_id)
    start = pickle.dumps(_build(entry))
    simulators = pickle.loads(start)
    methods = _methods(simulators)
    checks: list[tuple[Counter[str], dict[str, dict[str, Any]]] | None] = []
    before: dict[str, dict[str, Any]] = {}
    for calls in entry.ground_truth:
        if not calls:
            checks.append(None)
            continue
        results = Counter(execute(call, methods) for call in calls)
        states: dict[str, dict[str, Any]] = {}
        for name, simulator in simulators.items():
            now = {k: v for k, v in vars(simulator).items() if not k.startswith("_")}
            states[name] = before[name] if before.get(name) == now else copy.deepcopy(now)  # unchanged ones are shared
        before = states
        checks.append((results, states))
    return Task(entry, start, tuple(checks))


def instruction(entry: Entry) -> str:
    """The user's first words."""
    return next((turn for turn in entry.turns if turn), "")


def compact_document(document: dict[str, Any]) -> dict[str, Any]:
    """A function document without the simulator's preamble, which all of its functions repeat, and the result's fields."""
    text = document["description"]
    return {
        "name": document["name"],
        "description": text.split("Tool description: ", 1)[-1],
        "parameters": document["parameters"],
    }


def _build(entry: Entry) -> dict[str, Any]:
    from bfcl_eval.constants.executable_backend_config import STATELESS_CLASSES

    simulators = {}
    for name in entry.classes:
        simulators[name] = _class(name)()
        if name not in STATELESS_CLASSES:
            config = copy.deepcopy(entry.initial_config.get(name, {}))
            simulators[name]._load_scenario(config, long_context=entry.long_context)
    return simulators


@functools.cache
def _class(name: str) -> type:
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING

    found = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)
    assert isinstance(found, type)
    return found


@functools.cache
def _method_names(cls: type) -> tuple[str, ...]:
    return tuple(n for n, _ in inspect.getmembers(cls, predicate=inspect.isfunction) if not n.startswith("_"))


def _methods(simulators: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    return {name: getattr(s, name) for s in simulators.values() for name in _method_names(s.__class__)}
