"""One world: the process of one episode, in which the agent's code runs. It is forked from the zygote and never reused.

The agent's code may do anything to this process, so its own report of success does not count. It only reports the API
calls that were made. judge.py makes them again in another process and gives the verdict.
"""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Mapping
from typing import Any

from . import calls, wire


def serve(connection: socket.socket, options: Mapping[str, Any], confine: Any) -> None:
    """Opens the task's world and answers ``{"code", "room_bytes"}`` requests until the other side hangs up.

    An answer is two messages: what ``step`` returns, with the number of API calls, and these calls. The environment keeps the
    second as bytes and does not parse it: code can forge it, and 3 MB of JSON may take 100 MB of memory.

    Args:
        connection: The socket to the environment.
        options: ``task_id``, ``timeout_s``, ``max_api_calls`` (in one step), ``max_output_chars``.
        confine: Is called when the world is ready, before any of the agent's code runs.
    """
    world, line = open_world(options["task_id"], options["timeout_s"], options["max_api_calls"])
    confine()
    wire.send(connection, {"ready": about(world)})
    while True:
        request = wire.receive(connection)
        if request is None:
            return
        answer = step(world, line, request["code"], options["max_output_chars"], request["room_bytes"])
        made = answer.pop("calls")
        wire.send(connection, answer | {"api_calls": len(made)})
        wire.send(connection, made)


def open_world(
    task_id: str, timeout_s: float, max_api_calls: int, *, load_ground_truth: bool = False
) -> tuple[Any, Any]:
    """The engine's world for a task, and the Line that records its API calls."""
    from appworld import AppWorld

    world = AppWorld(
        task_id=task_id,
        experiment_name=experiment_name(os.getpid()),
        load_ground_truth=load_ground_truth,
        timeout_seconds=max(1, round(timeout_s)),
        max_interactions=10**9,  # ElasticTimeLimit limits the steps
        max_api_calls_per_interaction=max_api_calls,
    )
    return world, calls.tap(world, max_api_calls)


def experiment_name(pid: int) -> str:
    """The name of the folder for a process's outputs."""
    return f"eh-{pid}"


def about(world: Any) -> dict[str, Any]:
    """What is known about the task before the first step."""
    supervisor = world.task.supervisor
    return {
        "instruction": world.task.instruction,
        "supervisor": {k: supervisor[k] for k in ("first_name", "last_name", "email", "phone_number")},
        "datetime": world.task.datetime.isoformat(),
        "apps": dict(world.task.app_descriptions),
    }


def step(
    world: Any, line: Any, code: str, max_output_chars: int, room_bytes: int = wire.MAX_CALLS_BYTES
) -> dict[str, Any]:
    """Executes code with the engine and reports the outcome. The calls may take ``room_bytes`` of JSON."""
    line.record(room_bytes)
    try:
        output = world.execute(code)
    except BaseException as error:  # not caught by the engine (KeyboardInterrupt, say): its guard is still on
        output = f"Execution failed. Traceback:\n{type(error).__name__}: {error}"
        world.safety_guard.disable()
    made, line.recording = line.recording, None
    return {
        "output": shorten(output, max_output_chars),
        "malformed": not _parses(code),
        "completed": any(c["status"] == 200 and c["url"] == calls.COMPLETE_TASK for c in made),
        "calls": made,
    }


def shorten(text: str, limit: int) -> str:
    r"""Cuts the middle out of a text longer than ``limit`` characters and puts a note in its place.

    >>> shorten("0123456789" * 100, 60)
    '0123456789\n[980 characters left out]\n0123456789'
    """
    if len(text) <= limit:
        return text
    half = max(0, (limit - 40) // 2)  # the note takes less than 40 characters
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[len(text) - half :]}"


def _parses(code: str) -> bool:
    code = code.strip()  # as the engine does before it runs the code
    if not code:
        return False
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
