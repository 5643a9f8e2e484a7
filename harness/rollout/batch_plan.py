"""Which episodes each update has: its tasks, the size of their groups, and the replacements of groups with equal rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.rollout.groups import TaskSuccess, group_sizes
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
        success: How likely each task is solved, which the next two need.
        adaptive_groups: Whether tasks in the middle get more episodes than the others; their mean is `group_size`.
        curriculum: Each task is the one of so many candidates whose outcome is least certain; 1 chooses nothing.
    """

    stream: TaskStream
    group_size: int
    updates: int
    seed: int
    dynamic_sampling: int = 0
    success: TaskSuccess | None = None
    adaptive_groups: bool = False
    curriculum: int = 1

    def requests(self, update: int) -> list[EpisodeRequest]:
        """The episodes of one update, group by group."""
        tasks = self.stream.batch(update)
        if self.success and self.curriculum > 1:
            tasks = [self.success.least_certain(some) for some in self.stream.candidates(update, self.curriculum)]
        sizes = [self.group_size] * len(tasks)
        if self.success and self.adaptive_groups:
            sizes = group_sizes([self.success.expected(task) for task in tasks], self.group_size * len(tasks))
        return self._requests(update, dict(enumerate(tasks)), sizes)

    def observe(self, update: int, trajectories: Sequence[Trajectory]) -> None:
        """Counts the successes of an update's episodes, if `success` is set. The arguments are those of `replacements`."""
        if self.success:
            offered = self.stream.candidates(update, self.curriculum) if self.curriculum > 1 else []
            self.success.observe(trajectories, [task for some in offered for task in some])

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
        return self._requests(update, tasks, [self.group_size] * missing)

    def _requests(self, update: int, tasks: Mapping[int, str], sizes: Sequence[int]) -> list[EpisodeRequest]:
        return [
            EpisodeRequest(task_id, group, derive_seed(self.seed, "episode", update, group, member))
            for (group, task_id), size in zip(tasks.items(), sizes, strict=True)
            for member in range(size)
        ]


def useful_groups(trajectories: Sequence[Trajectory]) -> int:
    """The number of groups with at least two different rewards: only these have advantages other than 0."""
    rewards: dict[int, set[float]] = {}
    for t in trajectories:
        if t.end != "environment-error":
            rewards.setdefault(t.group, set()).add(t.reward)
    return sum(len(found) > 1 for found in rewards.values())
