"""Flags about the held-out evaluation of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from eh_gym.errors import ConfigError
from harness.settings.ranges import Range

__all__ = ["EvaluationFlags"]


@dataclass(frozen=True)
class EvaluationFlags:
    """How the policy is evaluated on held-out tasks."""

    eval_split: str = "test"
    """The split of the held-out tasks."""
    eval_tasks: Annotated[int, Range(0)] = 128
    """The number of held-out tasks. 0 evaluates nothing."""
    eval_rollouts: Annotated[int, Range(1)] = 8
    """The number of sampled episodes per task before and after training (the k of mean@k)."""
    eval_every: Annotated[int, Range(0)] = 0
    """The number of updates between evaluations during training, with one episode per task. 0 evaluates only before and after."""

    def check_evaluation(self, max_staleness: int) -> None:
        """Raises ConfigError for an evaluation during training that has no tasks, or not the policy's own weights."""
        if self.eval_every and not self.eval_tasks:
            raise ConfigError(f"eval_every ({self.eval_every}) needs held-out tasks; raise --eval-tasks")
        if self.eval_every and max_staleness:
            raise ConfigError(
                "eval_every needs max_staleness 0, because the sampler is busy with later updates; "
                "drop one of --eval-every and --max-staleness"
            )
