"""The warm start: behaviour cloning before the first update."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from eh_gym.ranges import Range
from harness.settings.section import FIRST, Changes, NoFlag, Section

_SMOLLM2, _RATE = 135e6, 1e-4  # cloning with this learning rate was measured for this many parameters
_LORA_FACTOR = 10  # adapters want about 10 times the learning rate (thinkingmachines.ai/blog/lora, 2025)


@dataclass(frozen=True)
class WarmStart(Section):
    """How the environment's expert is cloned before the first update. Its flags begin with ``--warm-start.``."""

    changes = Changes.RESULT

    prefix: ClassVar[str] = "warm_start."

    episodes: Annotated[int, Range(0), FIRST] = 0
    """The number of expert demonstrations; 0 turns the warm start off."""
    max_optimal_steps: Annotated[int, Range(0)] = 0
    """Only tasks that the expert solves in at most this many steps are used; 0 uses all. Then GRPO has to learn the
    long ones."""
    max_batches: Annotated[int, Range(1)] = 60
    """The most batches. A recipe's `polish_batches`, 100 in the quick start, come after them."""
    seed: Annotated[int, Range(-1)] = -1
    """Draws demonstrations and batches; -1 takes the run's seed. With a number, all seeds of a sweep share a pretrained
    model's clone."""
    max_tokens: NoFlag[Annotated[int, Range(1)]] = 4096
    """A longer demonstration is dropped."""
    loss_target: NoFlag[Annotated[float, Range(0)]] = 0.03
    """Cloning stops when the mean loss of the last 10 batches (or of 4, with a pretrained model) is below this target,
    in nats per token. It does not stop in the first 20 (or 4). 0 takes all `max_batches`."""
    learning_rate: NoFlag[Annotated[float, Range(0)]] = 0.0
    """0 takes 1e-4 for 135 million parameters; it falls with the square root of the parameters, and is 10 times that
    for LoRA."""
    batch_tokens: NoFlag[Annotated[int, Range(1)]] = 4096
    """The number of tokens per batch, padding included."""
    polish_batches: NoFlag[Annotated[int, Range(0)]] = 0
    """The number of further batches, in which half of the demonstrations waste steps, so that the policy explores."""
    polish_waste: NoFlag[Annotated[float, Range(0, 1)]] = 0.6
    """The probability that a step of a wasteful demonstration is a random action."""
    polish_learning_rate: NoFlag[Annotated[float, Range(0)]] = 0.0
    """The learning rate of these last batches. 0 takes a third of `learning_rate`."""

    def rate(self, parameters: int, *, lora: bool) -> float:
        """Returns the learning rate for a model of this size, its frozen parameters included; `lora` trains adapters
        alone.

        >>> round(WarmStart().rate(7_600_000_000, lora=False), 6), WarmStart().rate(135_000_000, lora=True)
        (1.3e-05, 0.001)
        """
        return self.learning_rate or _RATE * (_SMOLLM2 / parameters) ** 0.5 * (_LORA_FACTOR if lora else 1)
