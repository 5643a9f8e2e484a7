"""Estimates how long the episodes of each task are, so that the longest can start first.

An update ends with its last episode; a long episode that starts late keeps every other slot idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.types.rules import EpisodeRequest
from harness.types.trajectory import Trajectory

__all__ = ["EpisodeLengths", "longest_first"]

_MOST_TASKS = 10_000  # generated tasks may never come again; the task that was seen longest ago is forgotten first


class EpisodeLengths:
    """A running estimate of each task's episode length, in steps.

    After every update, a task's estimate becomes the mean of its old value and of the mean length of its new episodes. The
    estimate of a task that was never played is the mean of all estimates.

    >>> lengths = EpisodeLengths()
    >>> lengths.expected("a")
    0.0
    """

    def __init__(self) -> None:
        self._estimates: dict[str, float] = {}  # the task that was seen last comes last

    def expected(self, task_id: str) -> float:
        """The expected number of steps; the same for every task as long as nothing is known."""
        estimate = self._estimates.get(task_id)
        if estimate is None:
            return sum(self._estimates.values()) / max(1, len(self._estimates))
        return estimate

    def observe(self, trajectories: Sequence[Trajectory]) -> None:
        """Updates the estimates with one update's episodes. Episodes whose environment failed are ignored."""
        seen: dict[str, list[int]] = {}
        for t in trajectories:
            if t.end != "environment-error":
                seen.setdefault(t.task_id, []).append(t.length)
        for task_id, steps in seen.items():
            mean = sum(steps) / len(steps)
            before = self._estimates.pop(task_id, mean)
            self._estimates[task_id] = (before + mean) / 2
        for task_id in list(self._estimates)[:-_MOST_TASKS]:
            del self._estimates[task_id]

    def state_dict(self) -> dict[str, Any]:
        """The estimates, in order, as JSON values."""
        return {"estimates": list(self._estimates.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        self._estimates = {str(task_id): float(steps) for task_id, steps in state["estimates"]}


def longest_first(requests: Sequence[EpisodeRequest], lengths: EpisodeLengths) -> list[int]:
    """Indices of the requests, the longest expected first. Requests of equal expectation, such as a group, keep their order.

    >>> lengths = EpisodeLengths()
    >>> lengths.load_state_dict({"estimates": [["long", 9], ["short", 2]]})  # "new" counts 5.5
    >>> names = ["short", "short", "new", "long", "long"]
    >>> longest_first([EpisodeRequest(name, 0, 0) for name in names], lengths)
    [3, 4, 2, 0, 1]
    """
    expected = {task_id: lengths.expected(task_id) for task_id in {request.task_id for request in requests}}
    return sorted(range(len(requests)), key=lambda index: -expected[requests[index].task_id])
