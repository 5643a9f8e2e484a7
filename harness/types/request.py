"""The input of a rollout: the episodes to play."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EpisodeRequest:
    """One episode to play.

    Attributes:
        task_id: The task.
        group: The index of the task in its update.
        seed: The environment's reset and every sampled turn derive their seeds from it.
    """

    task_id: str
    group: int
    seed: int
