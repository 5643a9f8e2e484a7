"""Gives one verdict: makes an episode's API calls again in a clean world, and lets AppWorld evaluate that world.

The agent's code never runs in this process. The engine's clock and random numbers are fixed, so the same calls leave the same
state. Calls of paths that are not public APIs (the engine's own /dbs, /seed, the admin app) are not made, so their effects
do not count.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import adaptations, calls, wire, world

_TIMEOUT_S = 3600.0  # the engine's own timeout; the environment's is shorter


Find = Callable[[str, str], tuple[str, str] | None]


def serve(connection: socket.socket, options: Mapping[str, Any], find: Find) -> None:
    """Reports ready, reads ``{"steps": n}``, makes the calls of n messages, and answers with the verdict.

    Raises:
        ValueError: One of these messages is not the calls of a step; the agent's code has forged it.
    """
    replay = Replay(options["task_id"], find)
    wire.send(connection, {"ready": True})
    request = wire.receive(connection)
    for _ in range(request["steps"] if request else 0):
        replay.make(calls.checked(wire.receive(connection), options["max_api_calls"]))
    wire.send(connection, {"verdict": replay.verdict()})


class Replay:
    """A clean world of a task, in which recorded calls are made again.

    A GET that changed nothing is not made again until another call may have changed something: an application's answer to it
    depends on its databases, the random numbers, the request, and the access tokens that a POST has ended. Code that waits in a
    loop, or looks up the same thing again and again, makes thousands of such calls.
    """

    def __init__(self, task_id: str, find: Find) -> None:
        self._find = find
        self._world, self._line = world.open_world(task_id, _TIMEOUT_S, 10**9, load_ground_truth=True)
        self._databases = [app.SQLModel.db for _, app in self._world.models.items()]
        self._without_effect: dict[tuple[str, ...], int | None] = {}  # request -> status, since the last change
        self._differing = self._skipped = 0

    def make(self, recorded: Iterable[calls.Call]) -> None:
        """Makes calls."""
        self._world.safety_guard.enable()  # as in the agent's world, where it also takes functions away from the apps
        for call in recorded:
            status = self._status(call)
            self._skipped += status is None
            self._differing += status is not None and status != call["status"]
        self._world.safety_guard.disable()

    def _status(self, call: calls.Call) -> int | None:
        request = (
            call["method"],
            call["url"],
            call["body"],
            *(text for pair in call["headers"].items() for text in pair),
        )
        if request in self._without_effect:
            return self._without_effect[request]
        before = self._changes()
        status = calls.make(self._world, call, self._find)
        if call["method"] == "GET" and self._changes() == before:
            self._without_effect[request] = status
        else:
            self._without_effect.clear()
        return status

    def _changes(self) -> tuple[Any, ...]:
        """A value that differs after a call that changed a database or drew a random number."""
        counts = [(db.connection.total_changes, len(db.tracker.changes)) for db in self._databases]
        return self._line.random_state, counts

    def verdict(self) -> dict[str, Any]:
        """AppWorld's evaluation of the state that the calls leave.

        Returns:
            ``success``; ``passed`` and ``total``, numbers of tests; ``failures``, the requirements that were not met;
            ``differing``, how many calls got another status than in the agent's world; ``skipped``, how many were not public
            APIs.
        """
        tracker = evaluate(self._world)
        return {
            "success": bool(tracker.success),
            "passed": tracker.pass_count,
            "total": tracker.num_tests,
            "failures": [failure["requirement"] for failure in tracker.failures],
            "differing": self._differing,
            "skipped": self._skipped,
        }


def evaluate(opened: Any) -> Any:
    """AppWorld's evaluation of a world as it is."""
    from appworld.evaluator import evaluate_task

    adaptations.flush(opened)
    return evaluate_task(task_id=opened.task_id, experiment_name=opened.experiment_name, save_report=False)
