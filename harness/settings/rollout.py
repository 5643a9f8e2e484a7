"""Flags about the rollout: how many episodes an update has, and how they are played."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from eh_gym.errors import ConfigError
from harness.settings.ranges import Range
from harness.types.rules import RolloutMode

__all__ = ["RolloutFlags"]


@dataclass(frozen=True)
class RolloutFlags:
    """How episodes are played."""

    tasks_per_update: Annotated[int, Range(1)] = 16
    """The number of tasks in one update."""
    group_size: Annotated[int, Range(2)] = 8
    """The number of episodes per task (G)."""
    rollout: RolloutMode = "streaming"
    """streaming: no episode waits for another one. lockstep: all take turns together, and runs are reproducible bit for bit."""
    slots: Annotated[int, Range(0)] = 0
    """The number of environments played at once. 0 takes as many as an update has episodes."""
    temperature: Annotated[float, Range(0, 2, above=True)] = 1.0
    """The temperature of the sampled actions."""
    max_action_tokens: Annotated[int, Range(1)] = 1024
    """The most tokens of one action."""
    max_observation_tokens: Annotated[int, Range(16, zero=True)] = 0
    """A longer observation loses its middle. 0 keeps all of it."""
    max_staleness: Annotated[int, Range(0)] = 0
    """How many updates ahead of its own an episode may begin. 0: sampling and training take turns. With more, episodes play while
    the policy is trained, and go on under the new weights."""

    @property
    def episodes_per_update(self) -> int:
        """Tasks times group size."""
        return self.tasks_per_update * self.group_size

    def slots_of_rank(self, ranks: int) -> int:
        """The number of environments that each of so many processes plays at once, in training and in evaluations."""
        return -(-min(self.slots or self.episodes_per_update, self.episodes_per_update) // ranks)

    def check_rollout(self) -> None:
        """Raises ConfigError for settings that exclude each other."""
        if self.max_staleness and self.rollout == "lockstep":
            raise ConfigError(
                f"--max-staleness {self.max_staleness} needs --rollout streaming, because episodes play while the policy is "
                "trained; add it, or leave --max-staleness out"
            )
