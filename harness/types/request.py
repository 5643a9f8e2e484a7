"""The input of a rollout: the episodes to play."""

from dataclasses import dataclass
from typing import Any

from harness.types.seeding import derive_seed


@dataclass(frozen=True)
class EpisodeRequest:
    """One episode to play.

    Attributes:
        group: The index of the task in its update.
        seed: The environment's reset and every sampled turn derive their seeds from it.
    """

    task_id: str
    group: int
    seed: int

    def reset_arguments(self) -> dict[str, Any]:
        """The arguments of the environment's reset. They are the same for every player, and in every attempt."""
        return {"seed": derive_seed(self.seed, "reset") % 2**31, "options": {"task_id": self.task_id}}
