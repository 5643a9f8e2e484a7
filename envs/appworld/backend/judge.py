"""Gives one verdict: makes an episode's API calls again in a clean world, and lets AppWorld evaluate that world.

The agent's code never runs in this process. The engine's clock and random numbers are fixed, so the same calls leave the same
state. Calls of paths that are not public APIs (the engine's own /dbs, /seed, the admin app) are not made, so their effects
do not count.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from . import adaptations, calls, wire, world

_TIMEOUT_S = 3600.0  # the engine's own timeout; the environment's is shorter


def serve(
    connection: socket.socket, options: Mapping[str, Any], find: Callable[[str, str], tuple[str, str] | None]
) -> None:
    """Answers one list of calls with one verdict."""
    request = wire.receive(connection)
    if request is not None:
        wire.send(connection, {"verdict": verdict(options["task_id"], request["calls"], find)})


def verdict(
    task_id: str, recorded: list[calls.Call], find: Callable[[str, str], tuple[str, str] | None]
) -> dict[str, Any]:
    """AppWorld's evaluation of the state that the recorded calls leave.

    Returns:
        ``success``; ``passed`` and ``total``, numbers of tests; ``failures``, the requirements that were not met;
        ``differing``, how many calls got another status than in the agent's world; ``skipped``, how many were not public
        APIs.
    """
    clean, _ = world.open_world(task_id, _TIMEOUT_S, 10**9, load_ground_truth=True)
    differing = skipped = 0
    clean.safety_guard.enable()  # as in the agent's world, where it also takes functions away from the apps
    for call in recorded:
        status = calls.make(clean, call, find)
        skipped += status is None
        differing += status is not None and status != call["status"]
    clean.safety_guard.disable()
    tracker = evaluate(clean)
    return {
        "success": bool(tracker.success),
        "passed": tracker.pass_count,
        "total": tracker.num_tests,
        "failures": [failure["requirement"] for failure in tracker.failures],
        "differing": differing,
        "skipped": skipped,
    }


def evaluate(opened: Any) -> Any:
    """AppWorld's evaluation of a world as it is."""
    from appworld.evaluator import evaluate_task

    adaptations.flush(opened)
    return evaluate_task(task_id=opened.task_id, experiment_name=opened.experiment_name, save_report=False)
