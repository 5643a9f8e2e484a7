"""One BFCL episode by the official rules, with the official verdict. docs/bfcl.md has the rules."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .calls import FORMATS, Call, DecodeError, PlainCall, source_text, to_hermes, to_native, to_python
from .data import Entry, load_entry
from .execution import execute
from .limits import LONGEST_RESULTS
from .official import results_message, reveal_message

STEP_LIMIT = 20  # bfcl_eval.constants.default_prompts.MAXIMUM_STEP_LIMIT
REVEAL = "I have updated some more functions you can choose from. What about now?"
END_OF_TURN = "Done."  # not a call in any format
_STEPS_PER_TURN = 18  # in a turn with more calls, the expert puts several into each step
_WRITERS = {"python": to_python, "hermes": to_hermes, "native": to_native}


@dataclass(frozen=True)
class Task:
    """The data that all episodes of an entry share.

    Attributes:
        start: The simulators at the start, pickled: loading them is faster than building them.
        checks: For each turn, the ground truth's results and its simulators' public attributes; None without a
            ground-truth call.
    """

    entry: Entry
    start: bytes
    checks: tuple[tuple[Counter[str], dict[str, dict[str, Any]]] | None, ...]


@dataclass(frozen=True)
class StepResult:
    """The outcome of one message of the agent.

    Attributes:
        observation: The results, or the next user message.
        success: The verdict, once the episode is over.
        turn: The index of the present user turn.
        calls: The number of calls that this message executed.
        malformed: Whether the message looks like calls but holds none.
        failure: The first failed check as (turn, kind), once the episode is over; None after a success.
        results: In the native format, the result of each call; otherwise empty.
    """

    observation: str
    done: bool
    success: bool
    turn: int
    calls: int
    malformed: bool
    failure: tuple[int, str] | None
    results: tuple[str, ...] = ()


class EntryEpisode:
    """A running episode of an entry. ``prompt`` is the form of results and held-back functions."""

    def __init__(self, task_id: str, action_format: str, prompt: str = "compact") -> None:
        self._task = task_of(task_id)
        self._format, self._official = action_format, prompt == "official"
        self._simulators: dict[str, Any] = pickle.loads(self._task.start)
        self._methods = _methods(self._simulators)
        self._turn = 0
        self._steps = 0  # executed in this turn
        self._results: Counter[str] = Counter()  # those that a check can ask for
        self._expected = {result for check in self._task.checks if check is not None for result in check[0]}
        self._failure: tuple[int, str] | None = None
        self._nested = False  # whether a call may have had a call as an argument

    def user_message(self) -> str:
        revealed = self._task.entry.held_out.get(self._turn)
        if revealed is None:
            return self._task.entry.turns[self._turn]
        if self._format == "native":
            return REVEAL  # the documents are added to the list of tools
        if self._official:
            return reveal_message(revealed)
        return "\n".join([*(json.dumps(d, separators=(",", ":")) for d in map(compact_document, revealed)), REVEAL])

    def step(self, action: str) -> StepResult:
        undecodable = False
        try:
            calls = FORMATS[self._format](action)
        except DecodeError:
            calls, undecodable = [], True
        if not calls:
            looks_like_calls = {
                "python": "[" in action and "(" in action,
                "hermes": "<tool_call>" in action,
                "native": undecodable,
            }
            return self._end_turn(malformed=looks_like_calls[self._format])
        results: list[str] = []
        room = LONGEST_RESULTS
        for call in calls:
            self._nested = self._nested or not isinstance(call, PlainCall)
            results.append(execute(call, self._methods, room, nested=self._nested))
            room -= len(results[-1])
        self._results.update(result for result in results if result in self._expected)
        self._steps += 1
        observation = self._show(calls, results)
        if self._steps > STEP_LIMIT:  # as upstream: the 21st step was still executed
            self._check_turn()
            if self._turn < len(self._task.entry.turns) - 1:
                self._fail("step_limit")
            return self._result(observation, done=True, results=results)
        return self._result(observation, done=False, results=results)

    def expert(self) -> str:
        """The ground truth's next message: usually one call, or a message without a call to end the turn."""
        calls = list(self._task.entry.ground_truth[self._turn]) if self._turn < len(self._task.entry.turns) else []
        per_step = -(-len(calls) // _STEPS_PER_TURN) or 1
        due = calls[self._steps * per_step : (self._steps + 1) * per_step]
        if not due:
            return END_OF_TURN
        return _WRITERS[self._format](due, self._methods)

    def _end_turn(self, *, malformed: bool) -> StepResult:
        self._check_turn()
        self._turn += 1
        self._steps = 0
        done = self._turn >= len(self._task.entry.turns)
        observation = "The conversation is over." if done else self.user_message()
        return self._result(observation, done=done, malformed=malformed)

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
        return all(
            getattr(self._simulators[name], key) == value
            for name, state in states.items()
            for key, value in state.items()
        )

    def _fail(self, kind: str) -> None:
        self._failure = self._failure or (self._turn, kind)

    def _result(
        self, observation: str, *, done: bool, results: Sequence[str] = (), malformed: bool = False
    ) -> StepResult:
        success, failure = done and self._failure is None, self._failure if done else None
        apart = tuple(results) if self._format == "native" else ()
        return StepResult(observation, done, success, self._turn, len(results), malformed, failure, apart)

    def _show(self, calls: list[Call], results: list[str]) -> str:
        if self._official and self._format == "python":
            return results_message([source_text(call) for call in calls], results)
        if self._format == "hermes":  # as Qwen's chat template shows the results of tools
            return "\n".join(f"<tool_response>\n{r}\n</tool_response>" for r in results)
        return "\n".join(results)


@functools.cache
def task_of(task_id: str) -> Task:
    """Builds an entry's start state and replays its ground truth, once per process."""
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
            states[name] = before[name] if before.get(name) == now else copy.deepcopy(now)  # share unchanged states
        before = states
        checks.append((results, states))
    return Task(entry, start, tuple(checks))


def instruction(entry: Entry) -> str:
    return next((turn for turn in entry.turns if turn), "")


def compact_document(document: dict[str, Any]) -> dict[str, Any]:
    """A function document without the result's fields and the preamble that all functions of a simulator repeat."""
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
            simulators[name]._load_scenario(config, long_context="long_context" in entry.task_id)
    return simulators


def load_simulators() -> None:
    for name in (
        *("GorillaFileSystem", "MathAPI", "MessageAPI", "TicketAPI"),
        *("TradingBot", "TravelAPI", "TwitterAPI", "VehicleControlAPI"),
    ):
        _class(name)


@functools.cache
def _class(name: str) -> type:
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING

    simulator = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)
    assert isinstance(simulator, type)
    return simulator


@functools.cache
def _method_names(cls: type) -> tuple[str, ...]:
    return tuple(n for n, _ in inspect.getmembers(cls, predicate=inspect.isfunction) if not n.startswith("_"))


def _methods(simulators: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    return {name: getattr(s, name) for s in simulators.values() for name in _method_names(s.__class__)}
