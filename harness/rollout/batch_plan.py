"""Which episodes each update has: a group for each of its tasks."""

from __future__ import annotations

from dataclasses import dataclass

from harness.rollout.tasks import TaskStream
from harness.types.rules import EpisodeRequest
from harness.types.seeding import derive_seed

__all__ = ["BatchPlan"]


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Which episodes each update has.

    Attributes:
        stream: The tasks of each update.
        group_size: The number of episodes per task.
        updates: The number of updates; no batch is begun beyond the last one.
        seed: The run's seed. Every episode derives its own from it and from its place.
    """

    stream: TaskStream
    group_size: int
    updates: int
    seed: int

    def requests(self, update: int) -> list[EpisodeRequest]:
        """The episodes of one update, group by group."""
        return [
            EpisodeRequest(task_id, group, derive_seed(self.seed, "episode", update, group, member))
            for group, task_id in enumerate(self.stream.batch(update))
            for member in range(self.group_size)
        ]
