"""One verdict: a process that makes an episode's API calls again in a clean world and has AppWorld evaluate it.

No code of the agent's ever runs here. The engine's clock and random numbers are fixed, so the same calls leave the same
state. Calls that are no public API (the engine's own /dbs, /seed, the admin app) are not made: what they did does not
count. Left out: answers to the calls, which nobody reads.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from . import adaptations, calls, wire, world

_TIMEOUT_S = 3600.0  # the engine's own time-out; the environment's comes first


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
        ``success``; ``passed`` and ``total``, counts of tests; ``failures``, the requirements not met; ``differing``, how
        many calls were answered with another status than in the agent's world; ``skipped``, how many were no public API.
    """
    clean, _ = world.open_world(task_id, _TIMEOUT_S, 10**9, load_ground_truth=True)
    differing = skipped = 0
    for call in recorded:
        status = calls.make(clean, call, find)
        skipped += status is None
        differing += status is not None and status != call["status"]
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
