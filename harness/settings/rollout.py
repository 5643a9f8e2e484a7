"""Flags about the rollout: how many episodes an update has, and how they are played."""

from __future__ import annotations

from dataclasses import dataclass

from eh_gym.errors import ConfigError
from harness.types.rules import RolloutMode

__all__ = ["RolloutFlags"]


@dataclass(frozen=True)
class RolloutFlags:
    """How episodes are played."""

    tasks_per_update: int = 16
    """The number of tasks in one update."""
    group_size: int = 8
    """The number of episodes per task (G)."""
    rollout: RolloutMode = "streaming"
    """streaming: no episode waits for another one. lockstep: all take turns together, and runs are reproducible bit for bit."""
    slots: int = 0
    """The number of environments that are played at once. 0 takes as many as an update has episodes."""
    temperature: float = 1.0
    """The temperature of the sampled actions."""
    max_action_tokens: int = 1024
    """The most tokens of one action."""
    max_observation_tokens: int = 0
    """A longer observation loses its middle. 0 keeps all of it."""
    max_staleness: int = 0
    """How many updates ahead of its own an episode may begin. 0 samples and trains in turns. 1 samples the next update's episodes
    during the policy update. With more, episodes never wait for an update, and go on under the new weights."""
    dynamic_sampling: int = 0
    """How many times an update replaces groups whose rewards are all equal by groups of other tasks (DAPO). All count for K."""
    adaptive_groups: bool = False
    """Give tasks that are neither nearly always nor nearly never solved more of an update's episodes (VIP): in proportion to
    sqrt(p (1 - p)), where p is the share of successes in a task's earlier episodes. The sum stays."""

    curriculum: int = 1
    """Each task of an update is the one of so many candidates whose outcome is least certain: whose p (1 - p) is largest. 1 takes
    every task as it comes."""

    @property
    def episodes_per_update(self) -> int:
        """Tasks times group size."""
        return self.tasks_per_update * self.group_size

    def check_rollout(self) -> None:
        """Raises ConfigError for episodes that nothing can be learned from, or that no sampler can play."""
        if self.group_size < 2:
            raise ConfigError(
                f"group_size must be >= 2, got {self.group_size}: one episode has nothing to compare with"
            )
        if self.adaptive_groups and self.group_size < 3:
            raise ConfigError(
                f"adaptive_groups shares out what is above 2 episodes per task, got group_size {self.group_size}; raise it"
            )
        if self.max_staleness < 0:
            raise ConfigError(f"max_staleness must be >= 0, got {self.max_staleness}; 0 samples and trains in turns")
        if self.max_staleness > 1 and self.rollout == "lockstep":
            raise ConfigError(
                f"max_staleness {self.max_staleness} needs rollout streaming, because episodes of several updates play at once; "
                "drop one of --max-staleness and --rollout"
            )
        if not 0 < self.temperature <= 2:  # the range that every sampler has
            raise ConfigError(f"temperature must be > 0 in training, and <= 2, got {self.temperature}")
        if 0 < self.max_observation_tokens < 16:
            raise ConfigError(f"max_observation_tokens must be 0 (all) or >= 16, got {self.max_observation_tokens}")
