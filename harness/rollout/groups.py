"""How likely tasks are solved, and what follows: which tasks an update has, and how many episodes each of them gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.types.trajectory import Trajectory

__all__ = ["TaskSuccess", "group_sizes"]

LEAST = 2
"""The fewest episodes of a task: one has nothing to compare with."""

_MOST_TASKS = 10_000  # generated tasks may never come again; the task that was seen longest ago is forgotten first


class TaskSuccess:
    """A running estimate of how likely each task is solved.

    A task's successes and episodes are counted. In each update that has the task, or had it as a candidate, the older counts are
    halved first, because the policy has changed since. So a task that is not chosen comes closer to 1/2. The estimate is the mean
    of Jeffreys' posterior, (successes + 1/2) / (episodes + 1), so it is never 0 or 1, and 1/2 for a task that was never played.

    >>> TaskSuccess().expected("a")
    0.5
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}  # successes, episodes; the task that was seen last comes last

    def expected(self, task_id: str) -> float:
        """The estimated probability of success, in (0, 1)."""
        successes, episodes = self._counts.get(task_id, (0.0, 0.0))
        return (successes + 0.5) / (episodes + 1.0)

    def least_certain(self, task_ids: Sequence[str]) -> str:
        """The task with the largest p (1 - p), where p is its probability of success; of equal ones the first."""
        return max(task_ids, key=lambda task_id: self.expected(task_id) * (1 - self.expected(task_id)))

    def observe(self, trajectories: Sequence[Trajectory], candidates: Sequence[str] = ()) -> None:
        """Counts one update's episodes. Episodes whose environment failed are ignored.

        Args:
            trajectories: The episodes.
            candidates: The tasks that the update could have had.
        """
        seen: dict[str, list[bool]] = {}
        for t in trajectories:
            if t.end != "environment-error":
                seen.setdefault(t.task_id, []).append(t.success)
        for task_id in ({*candidates} - {*seen}) & {*self._counts}:
            successes, episodes = self._counts[task_id]
            self._counts[task_id] = (successes / 2, episodes / 2)
        for task_id, outcomes in seen.items():
            successes, episodes = self._counts.pop(task_id, (0.0, 0.0))
            self._counts[task_id] = (successes / 2 + sum(outcomes), episodes / 2 + len(outcomes))
        for task_id in list(self._counts)[:-_MOST_TASKS]:
            del self._counts[task_id]

    def state_dict(self) -> list[Any]:
        """The counts, in order, as JSON values."""
        return [[task_id, *counts] for task_id, counts in self._counts.items()]

    def load_state_dict(self, state: Sequence[Any]) -> None:
        """Continues from what `state_dict` returned."""
        self._counts = {str(task_id): (float(successes), float(episodes)) for task_id, successes, episodes in state}


def group_sizes(chances: Sequence[float], total: int) -> list[int]:
    """Shares an update's episodes out among its tasks so that the gradient's variance is least.

    The variance that a task with success probability p and n episodes adds is proportional to p (1 - p) / n (VIP, arXiv
    2602.01601). With a fixed sum of the n, the sum of these is least if n is proportional to sqrt(p (1 - p)): Neyman's
    allocation. VIP predicts p with a Gaussian process over the tasks' texts; `TaskSuccess` counts instead. Every task gets
    `LEAST` episodes, and the rest is rounded by largest remainders.

    Args:
        chances: The probability of success of each task, in (0, 1).
        total: The number of episodes of the update, >= `LEAST` per task.

    Returns:
        The number of episodes of each task; their sum is `total`.

    >>> group_sizes([0.5, 0.5, 0.02, 0.98], 32)
    [13, 13, 3, 3]
    """
    spreads = np.sqrt([p * (1 - p) for p in chances])
    wanted = np.maximum(spreads / spreads.sum() * total, LEAST)
    rest = total - LEAST * len(chances)
    above = wanted - LEAST
    exact = above / above.sum() * rest if above.any() else np.zeros(len(chances))
    sizes = np.floor(exact).astype(int)
    left = rest - int(sizes.sum())
    remainders = np.round(exact - sizes, 9)  # so that equal ones are equal on every machine
    sizes[np.argsort(-remainders, kind="stable")[:left]] += 1
    return [LEAST + int(size) for size in sizes]
