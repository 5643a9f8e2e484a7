"""EH-BFCL: BFCL's multi-turn function calling, with the official simulators, rules and verdict.

The simulators run in worker processes with bfcl-eval's own virtualenv. Many environments share a worker. The
environment has BFCL's four multi-turn categories, but not `composite`, most of whose entries contain calls that fail.
"""

import copy
import functools
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.utils import EzPickle

from eh_gym.errors import ConfigError, WorkerCallError, WorkerDied, WorkerError, WorkerProtocolError, WorkerTimeout
from eh_gym.horizon.checks import is_number
from eh_gym.horizon.controller import is_whole
from eh_gym.replies import split_reply
from eh_gym.spaces import UnicodeText
from eh_gym.worker import Session, backend_command, shared_pool
from envs.backends import backend_python
from envs.bfcl.backend.calls import CPU_S, FORMATS, LONGEST, LONGEST_PYTHON
from envs.bfcl.splits import SPLITS, task_ids
from envs.description import Backend, Description
from envs.options import chosen_task

_LONGEST = 10_000_000  # characters; only the spaces need this bound
_PROMPTS = ("compact", "official")
_RULES = """\
You solve a user's requests by calling functions. In each message, call one or more of the functions{below}, or say in \
words that you are done with the user's present request. After a message with calls you get their results; after a message \
without a call the user speaks next. Use only what the user or a result tells you: if a needed value is missing or no \
function fits, say so instead of guessing. At most 20 messages with calls are allowed per request. Nothing is confirmed or \
asked back; what counts is the state that your calls leave and the results that they return."""
_FUNCTIONS = """

{format}

The functions, one JSON document each:
{functions}"""
_WRITTEN_FORMATS = {
    "python": (
        f"Write calls as a Python list and nothing else, every argument by keyword, in at most {LONGEST_PYTHON:,} "
        "characters:\n[first_function(name='value', number=3), second_function()]"
    ),
    "hermes": (
        "Write each call in a block of its own, with the tags on lines of their own:\n"
        '<tool_call>\n{"name": "first_function", "arguments": {"name": "value", "number": 3}}\n</tool_call>'
    ),
}

# BFCL's documents name some types as Python does. These are JSON Schema's names for them.
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


class BFCLEnv(gym.Env[str, str], EzPickle):
    """A conversation with a user over stateful function calls: 200 scenarios in 4 categories.

    The observation is the user's message, or the results of the calls just made. The action is the model's text. The
    reward is 0 until the end and then the official verdict, 1 or 0.

    ``info`` at reset: ``task_id`` (the official entry id), ``system_prompt``, ``instruction`` (the user's first
    message), ``category``. ``info`` at each step: ``turn`` (the index of the user's turn), ``calls`` (the number of
    executed calls), ``malformed`` (the action looks like calls but holds none), and at the end ``success``. After a
    failure, ``failure`` is ``{"turn", "kind"}`` of the first failed check. The kind is no_call, wrong_state,
    missing_result or step_limit.

    If calls ask for too much time or memory, the episode ends with reward 0 and ``info["world_lost"]``. If the worker
    fails for another reason, the episode is truncated with ``info["environment_error"]``. See docs/bfcl.md.

    With ``action_format="native"``, ``info["tools"]`` at reset has the functions, as OpenAI and chat templates take
    them: ``{"type": "function", "function": {"name", "description", "parameters"}}``, with a JSON Schema of the
    parameters. When the user reveals functions, ``info["tools"]`` of that step has the longer list. The action is the
    assistant's message as JSON, ``{"content": …, "tool_calls": [{"type": "function", "function": {"name": …,
    "arguments": {…}}}]}``; any other text is a message without a call. After calls, ``info["tool_results"]`` has their
    results in order.

    Args:
        split: train (120 scenarios), dev (32), test (48) or all (200).
        categories: Some of base, miss_func, miss_param, long_context; None for all four.
        action_format: "python" (``[f(a=1), g()]``), "hermes" (``<tool_call>{json}</tool_call>``) or "native" (the calls
            as data, so that each model writes them in its own form). In the first two, a closed thought before the
            calls is ignored.
        prompt: "compact" (this project's rules and shortened function documents) or "official" (bfcl-eval's own texts,
            for scores that can be compared with others').
        workers: The number of worker processes, which all environments of this process with the same number share. None
            means one for each core, 4 at most.
        step_timeout_s: The seconds after which a worker that does not answer is killed. A message's calls are
            interrupted after 5 seconds of processor time, or a quarter of this if that is less.
        max_observation_chars: A note replaces the middle of longer results, >= 200. With "native", each result gets an
            equal share, and at least 200 characters. None, as in the official evaluation, keeps all: in long_context, a
            result has up to 32,000 characters along the ground truth.
        domains: Some of file_system, vehicle, trading, travel; None for all four.

    Raises:
        ConfigError: An argument is not one of those listed.
        MissingBackendError: bfcl-eval is not installed. The message names the command.
    """

    description: ClassVar = Description(
        SPLITS,
        task_ids,
        # The simulators need only mpmath. All dependencies of bfcl-eval take 6.4 GB.
        Backend("bfcl", "2026.3.23", {"bfcl-eval": "2026.3.23", "mpmath": "1.3.0"}),
        recipe="bfcl",
        # BFCL's own limit applies first: 8 turns of 21 steps at most.
        official={"split": "all", "env_args": {"prompt": "official"}, "horizon": 200},
        part_arguments=("categories", "domains"),
    )

    def __init__(
        self,
        split: str = "train",
        categories: Sequence[str] | None = None,
        action_format: str = "python",
        workers: int | None = None,
        step_timeout_s: float = 60.0,
        max_observation_chars: int | None = None,
        prompt: str = "compact",
        domains: Sequence[str] | None = None,
    ) -> None:
        EzPickle.__init__(
            self, split, categories, action_format, workers, step_timeout_s, max_observation_chars, prompt, domains
        )
        if prompt not in _PROMPTS:
            raise ConfigError(f"prompt must be one of {', '.join(_PROMPTS)}, got {prompt!r}")
        if action_format not in FORMATS:
            raise ConfigError(f"action_format must be one of {', '.join(FORMATS)}, got {action_format!r}")
        if not (is_number(step_timeout_s) and step_timeout_s > 0):
            raise ConfigError(f"step_timeout_s must be a number of seconds > 0, got {step_timeout_s!r}")
        if max_observation_chars is not None and not (is_whole(max_observation_chars) and max_observation_chars >= 200):
            raise ConfigError(
                f"max_observation_chars must be None or a whole number >= 200, got {max_observation_chars!r}"
            )
        if workers is not None and not (is_whole(workers) and workers >= 1):
            raise ConfigError(f"workers must be None or a whole number >= 1, got {workers!r}")
        self.task_ids: Sequence[str] = task_ids(split, categories, domains)
        self.observation_space = UnicodeText(_LONGEST)
        self.action_space = UnicodeText(_LONGEST)
        self._action_format, self._prompt = action_format, prompt
        self._workers = workers if workers is not None else min(os.cpu_count() or 1, 4)
        self._timeout_s = float(step_timeout_s)
        self._max_chars = max_observation_chars
        self._command = backend_command(backend_python("bfcl"), Path(__file__).parent / "backend" / "worker.py")
        self._session: Session | None = None
        self._about: Mapping[str, Any] = {}  # the data that all episodes of the entry share
        self._turn = 0
        self._running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the entry of ``options={"task_id": id}``, or without it, one of ``task_ids`` drawn with the seed.

        Raises:
            ConfigError: There is no such entry.
            WorkerError: No worker could be started, or the worker failed while loading the entry.
        """
        super().reset(seed=seed)
        task_id = chosen_task(self, options, _every_task(), "a BFCL multi-turn entry")
        self._running = False
        try:
            observation = self._begin(task_id)
        except (WorkerDied, WorkerTimeout, WorkerProtocolError):
            # The shared worker may have been killed because of another environment.
            self._leave()
            observation = self._begin(task_id)
        self._running, self._turn = True, 0
        info: dict[str, Any] = {
            "task_id": task_id,
            "system_prompt": self._about["system_prompt"],
            "instruction": self._about["instruction"],
            "category": task_id.removeprefix("multi_turn_").rsplit("_", 1)[0],
        }
        if self._action_format == "native":
            info["tools"] = self._tools()
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Sends one message. A text without a call ends the user's turn.

        Raises:
            gymnasium.error.ResetNeeded: The episode has ended, or none has begun.
        """
        session = self._live()
        text = action if isinstance(action, str) else ""  # an action that is not a text has no call
        if self._action_format != "native":
            text = split_reply(text)[1]
        try:
            # With LONGEST + 1 characters, the worker sees that the text is too long.
            params = {"action": text[: LONGEST + 1], "cpu_s": min(CPU_S, self._timeout_s / 4)}
            result = session.call("step", params, self._timeout_s)
        except WorkerError as error:
            self._running = False
            return _ended(error, self._turn)
        info = {name: result[name] for name in ("turn", "calls", "malformed")}
        if result["done"]:
            self._running = False
            info["success"] = result["success"]
            if result["failure"] is not None:
                info["failure"] = dict(zip(("turn", "kind"), result["failure"], strict=True))
        observation = result["observation"]
        if result["calls"]:
            observation = self._shortened(observation, self._max_chars)
        if result["results"]:
            each = self._max_chars and max(200, self._max_chars // len(result["results"]))
            results = [self._shortened(text, each) for text in result["results"]]
            info["tool_results"], observation = results, "\n".join(results)
        before, self._turn = self._turn, result["turn"]
        if self._action_format == "native" and self._turn != before and str(self._turn) in self._about["held_out"]:
            info["tools"] = self._tools()
        return observation, float(result["success"]), result["done"], False, info

    def expert(self) -> str:
        """The ground truth's next message: the next call, or "Done." to end the turn.

        It depends only on the number of steps in the present turn, so it is right if all steps were the expert's.
        """
        return str(self._live().call("expert", {}, self._timeout_s))

    def random_action(self, rng: np.random.Generator) -> str:
        """A call of one of the entry's functions without arguments (probability 2/3), or a message without a call."""
        names = self._about.get("names")
        if not names or rng.random() < 1 / 3:
            return "Done."
        name = names[int(rng.integers(len(names)))]
        if self._action_format == "python":
            return f"[{name}()]"
        if self._action_format == "native":
            return json.dumps({"tool_calls": [{"type": "function", "function": {"name": name, "arguments": {}}}]})
        return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'

    def close(self) -> None:
        self._leave()

    def _begin(self, task_id: str) -> str:
        if self._session is None or not self._session.alive:
            self._leave()
            self._session = shared_pool(self._workers, self._command).session()
        entry = {"task_id": task_id, "action_format": self._action_format, "prompt": self._prompt}
        self._about = self._describe(self._session, entry)
        return str(self._session.call("start", entry, self._timeout_s))

    def _tools(self) -> list[dict[str, Any]]:
        revealed = [d for turn, held in self._about["held_out"].items() if int(turn) <= self._turn for d in held]
        functions = [*self._about["functions"], *revealed]
        if self._prompt == "compact":
            functions = [{**d, "parameters": _json_schema(d["parameters"])} for d in functions]
        else:
            functions = copy.deepcopy(functions)  # each info gets its own copy
        return [{"type": "function", "function": document} for document in functions]

    def _live(self) -> Session:
        if self._session is None or not self._running:
            raise gym.error.ResetNeeded("this environment has no running episode; call reset() before step()")
        return self._session

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            if session.alive:
                session.call("finish", {}, self._timeout_s)
        except WorkerError:
            pass  # the worker is gone, and the episode with it
        finally:
            session.close()

    def _describe(self, session: Session, entry: Mapping[str, str]) -> Mapping[str, Any]:
        key = tuple(entry.values())
        if key not in _described:
            about = session.call("describe", entry, self._timeout_s)
            _described[key] = {
                **about,
                "names": tuple(d["name"] for d in about["functions"]),
                "system_prompt": self._system_prompt(session, entry, about["functions"]),
            }
        return _described[key]

    def _system_prompt(self, session: Session, entry: Mapping[str, str], functions: Sequence[Mapping[str, Any]]) -> str:
        if self._prompt == "official":
            return str(session.call("official", entry, self._timeout_s))
        if self._action_format == "native":
            return _RULES.format(below="")
        written = _FUNCTIONS.format(
            format=_WRITTEN_FORMATS[self._action_format],
            functions="\n".join(json.dumps(d, separators=(",", ":")) for d in functions),
        )
        return _RULES.format(below=" below") + written

    @staticmethod
    def _shortened(results: str, limit: int | None) -> str:
        if limit is None or len(results) <= limit:
            return results
        half = (limit - 60) // 2  # the note takes less than 60 characters
        return f"{results[:half]}\n[{len(results) - 2 * half} characters left out]\n{results[-half:]}"


def _ended(error: WorkerError, turn: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
    """The end of an episode whose step got no answer.

    It counts as the policy's failure, which could otherwise drop an episode from the statistics.
    """
    info: dict[str, Any] = {"turn": turn, "calls": 0, "malformed": False, "success": False}
    # The worker's own report names the host's files.
    reason = "the worker reported that it failed" if isinstance(error, WorkerCallError) else str(error).splitlines()[0]
    name = f"{type(error).__name__}: {error}"
    if isinstance(error, WorkerDied) and (not error.called or error.signal in (signal.SIGKILL, signal.SIGTERM)):
        text = f"The environment failed, and this episode is over: {reason}"
        return text, 0.0, False, True, {**info, "environment_error": name}
    text = f"Your calls could not be carried out, and this episode is over: {reason}"
    return text, 0.0, True, False, {**info, "world_lost": name}


def _json_schema(document: Any) -> Any:
    if isinstance(document, list):
        return [_json_schema(part) for part in document]
    if not isinstance(document, dict):
        return document
    schema = {name: _json_schema(part) for name, part in document.items()}
    if isinstance(schema.get("type"), str):  # a parameter may be called "type"
        schema["type"] = _JSON_TYPES.get(schema["type"], schema["type"])
    return schema


_described: dict[tuple[str, ...], Mapping[str, Any]] = {}


@functools.cache
def _every_task() -> frozenset[str]:
    return frozenset(task_ids("all"))
