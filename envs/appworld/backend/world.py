"""One world: the process of one episode, in which the agent's code runs. Forked from the zygote, never used twice.

Left out: the verdict. This process runs code that may do anything to it, so nothing it says about success counts; it
hands out the API calls that were made, and the judge makes them again elsewhere.
"""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Mapping
from typing import Any

from . import calls, wire


def serve(connection: socket.socket, options: Mapping[str, Any], confine: Any) -> None:
    """Opens the task's world, answers ``{"code"}`` requests until the other side hangs up.

    Args:
        connection: To the environment.
        options: ``task_id``, ``timeout_s``, ``max_api_calls`` (a step), ``max_output_chars``.
        confine: Called when the world is ready and before any of the agent's code.
    """
    world, line = open_world(options["task_id"], options["timeout_s"], options["max_api_calls"])
    confine()
    wire.send(connection, {"ready": about(world)})
    while True:
        request = wire.receive(connection)
        if request is None:
            return
        wire.send(connection, step(world, line, request["code"], options["max_output_chars"]))


def open_world(
    task_id: str, timeout_s: float, max_api_calls: int, *, load_ground_truth: bool = False
) -> tuple[Any, Any]:
    """The engine's world for a task, and the line that its API calls go over."""
    from appworld import AppWorld

    world = AppWorld(
        task_id=task_id,
        experiment_name=experiment_name(os.getpid()),
        load_ground_truth=load_ground_truth,
        timeout_seconds=max(1, round(timeout_s)),
        max_interactions=10**9,  # the horizon is the wrapper's business
        max_api_calls_per_interaction=max_api_calls,
    )
    return world, calls.tap(world)


def experiment_name(pid: int) -> str:
    """Names the folder of a process's outputs."""
    return f"eh-{pid}"


def about(world: Any) -> dict[str, Any]:
    """What is known about a task before the first step."""
    supervisor = world.task.supervisor
    return {
        "instruction": world.task.instruction,
        "supervisor": {k: supervisor[k] for k in ("first_name", "last_name", "email", "phone_number")},
        "datetime": world.task.datetime.isoformat(),
        "apps": dict(world.task.app_descriptions),
    }


def step(world: Any, line: Any, code: str, max_output_chars: int) -> dict[str, Any]:
    """Executes code as the engine does and says what came of it."""
    line.recording = []
    try:
        output = world.execute(code)
    except BaseException as error:  # what escapes the engine, such as KeyboardInterrupt, leaves its guard on
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
    r"""Leaves the middle out of a text longer than ``limit`` characters, with a note in its place.

    >>> shorten("0123456789" * 100, 60)
    '0123456789\n[980 characters left out]\n0123456789'
    """
    if len(text) <= limit:
        return text
    half = max(0, (limit - 40) // 2)  # the note takes less than 40
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[len(text) - half :]}"


def _parses(code: str) -> bool:
    if not code.strip():
        return False
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
