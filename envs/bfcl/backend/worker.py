"""The worker's side of EH-BFCL. It runs in bfcl-eval's virtualenv and holds many episodes at once."""

from __future__ import annotations

import functools
import gc
from typing import Any

from .calls import CPU_S
from .episode import EntryEpisode, compact_document, instruction, load_simulators, task_of
from .limits import limited, prepare
from .official import system_prompt, tool_document, with_hint

load_simulators()  # before memory is limited: a failed import can leave a broken module behind
prepare()
_episodes: dict[int, EntryEpisode] = {}


def handle(method: str, params: dict[str, Any]) -> Any:
    """Answers one call of the environment.

    ``describe(task_id, action_format, prompt)`` -> instruction, functions, held_out (turn -> functions);
    ``official(task_id, action_format)`` -> BFCL's own system prompt; ``start(session, task_id, action_format, prompt)``
    -> the first message; ``step(session, action, cpu_s)`` -> a StepResult; ``expert(session)`` -> an action;
    ``finish(session)``. An episode whose step raises is over.
    """
    if method == "step":
        try:
            return _step(params)
        except Exception as error:
            failure = error.with_traceback(None)  # its frames hold the episode
        _episodes.pop(params["session"], None)
        gc.collect()  # the episode's memory is for the others, and its folders hold each other
        raise failure
    if method == "expert":
        return _episodes[params["session"]].expert()
    if method == "start":
        episode = _episodes[params["session"]] = EntryEpisode(
            params["task_id"], params["action_format"], params["prompt"]
        )
        return episode.user_message()
    if method == "finish":
        _episodes.pop(params["session"], None)
        return None
    if method == "describe":
        entry = task_of(params["task_id"]).entry
        functions, held_out = list(entry.functions), {str(turn): list(held) for turn, held in entry.held_out.items()}
        if params["prompt"] == "official":  # upstream gives no hint with functions that it reveals later
            functions = list(map(with_hint, functions))
            shown = tool_document if params["action_format"] == "native" else dict
        else:
            shown = compact_document
        return {
            "instruction": instruction(entry),
            "functions": list(map(shown, functions)),
            "held_out": {turn: list(map(shown, held)) for turn, held in held_out.items()},
        }
    if method == "official":
        return system_prompt(task_of(params["task_id"]).entry.functions, params["action_format"])
    raise ValueError(f"unknown method {method!r}")


def _step(params: dict[str, Any]) -> dict[str, Any]:
    step = functools.partial(_episodes[params["session"]].step, params["action"])
    return vars(limited(step, params.get("cpu_s", CPU_S)))
