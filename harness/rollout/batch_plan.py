"""Which episodes each update has: a group for each of its tasks, and the replacements of groups with equal rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.rollout.tasks import TaskStream
from harness.types.rules import EpisodeRequest
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory

__all__ = ["BatchPlan", "useful_groups"]


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Which episodes each update has.

    Attributes:
        stream: The tasks of each update.
        group_size: The number of episodes per task.
        updates: The number of updates; no batch is begun beyond the last one.
        seed: The run's seed. Every episode derives its own from it and from its place.
        dynamic_sampling: How many times groups whose rewards are all equal are replaced by groups of other tasks.
    """

    stream: TaskStream
    group_size: int
    updates: int
    seed: int
    dynamic_sampling: int = 0

    def requests(self, update: int) -> list[EpisodeRequest]:
        """The episodes of one update, group by group."""
        return self._requests(update, dict(enumerate(self.stream.batch(update))))

    def replacements(self, update: int, trajectories: Sequence[Trajectory]) -> list[EpisodeRequest]:
        """One more group for each that the update lacks, each of another task.

        Args:
            update: The index of the update.
            trajectories: Its episodes so far.
        """
        begun = 1 + max((t.group for t in trajectories), default=self.stream.per_update - 1)
        missing = self.stream.per_update - useful_groups(trajectories)
        spare = begun - self.stream.per_update
        own = {t.task_id for t in trajectories if t.group < self.stream.per_update}
        tasks = {begun + i: self.stream.spare(update, spare + i, own) for i in range(missing)}
        return self._requests(update, tasks)

    def _requests(self, update: int, tasks: Mapping[int, str]) -> list[EpisodeRequest]:
        return [
            EpisodeRequest(task_id, group, derive_seed(self.seed, "episode", update, group, member))
            for group, task_id in tasks.items()
            for member in range(self.group_size)
        ]


def useful_groups(trajectories: Sequence[Trajectory]) -> int:
    """The number of groups with at least two different rewards: only these have advantages other than 0."""
    rewards: dict[int, set[float]] = {}
    for t in trajectories:
        if t.end != "environment-error":
            rewards.setdefault(t.group, set()).add(t.reward)
    return sum(len(found) > 1 for found in rewards.values())
