"""The held-out evaluation of a training run."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from eh_gym.ranges import Range
from harness.settings.section import FIRST, Changes, Section


@dataclass(frozen=True)
class Evaluation(Section):
    """How the policy is evaluated on held-out tasks. Its flags begin with ``--eval-``."""

    changes = Changes.RESULT

    prefix: ClassVar[str] = "eval_"

    split: str = "test"
    """The split of the held-out tasks."""
    tasks: Annotated[int, Range(0), FIRST] = 128
    """The number of held-out tasks. 0 evaluates nothing."""
    rollouts: Annotated[int, Range(1)] = 8
    """The number of sampled episodes per task before and after training (the k of mean@k)."""
    every: Annotated[int, Range(0)] = 0
    """The number of updates between evaluations during training, with one episode per task. 0 evaluates only before and
    after."""
    horizon: Annotated[int, Range(1)] | None = None
    """The K of the evaluations, in steps. The default is the horizon's k_max, or 50 if it has none."""
