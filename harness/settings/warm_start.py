"""Flags about the warm start: behaviour cloning before the first update."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from harness.settings.ranges import Range, check_settings

__all__ = ["LEAST_PRETRAINED", "WarmStart"]

LEAST_PRETRAINED = 10_000_000
"""A model with fewer parameters is a tiny one, which this project has made with random weights."""

_SMOLLM2, _RATE = 135e6, 1e-4  # cloning with this learning rate was measured for this many parameters
_LORA_FACTOR = 10  # adapters want about 10 times the learning rate (thinkingmachines.ai/blog/lora, 2025)


@dataclass(frozen=True)
class WarmStart:
    """How the environment's expert is cloned before the first update.

    A value that is 0 by default depends on the number of the model's parameters; `for_model` fills it in.

    Attributes:
        episodes: The number of expert demonstrations; 0 turns the warm start off.
        max_optimal_steps: Only tasks that the expert solves in at most this many steps are used; 0 uses all. If the
            clone has seen only short tasks, GRPO has to learn the long ones. Where the environment does not know the number, the
            expert's steps in the demonstration count.
        max_steps: A demonstration is stopped after this many steps.
        max_tokens: A longer demonstration is dropped.
        updates: Cloning takes exactly this many batches, whatever the loss is; 0 stops at the loss target.
        loss_target: Cloning stops when the mean loss of the last 10 batches (or of 4, with a pretrained model) is below this
            target, in nats per token. It does not stop in the first 20 (or 4).
        max_batches: Cloning takes at most this many batches before `polish_batches`. 0 takes 500 for a tiny model and 60 for
            others.
        learning_rate: The learning rate of the cloning. 0 takes 3e-3 for a tiny model and 1e-4 for 135 million parameters; it
            falls with the square root of the parameters, and is 10 times that for LoRA.
        batch_tokens: The number of tokens per batch, padding included. 0 takes 600 for a tiny model and 4096 for others.
        polish_batches: The number of further batches, in which half of the demonstrations waste steps, so that the policy
            explores.
        polish_waste: The probability that a step of a wasteful demonstration is a random action.
        polish_learning_rate: The learning rate of these last batches. 0 takes a third of `learning_rate`.
        seed: Draws the demonstrations and the batches. -1 takes the run's seed. With a number, all runs of a sweep begin with the
            same clone of a pretrained model.
    """

    episodes: Annotated[int, Range(0)] = 0
    max_optimal_steps: Annotated[int, Range(0)] = 0
    max_steps: Annotated[int, Range(1)] = 60
    max_tokens: Annotated[int, Range(1)] = 4096
    updates: Annotated[int, Range(0)] = 0
    loss_target: Annotated[float, Range(0)] = 0.03
    max_batches: Annotated[int, Range(0)] = 0
    learning_rate: Annotated[float, Range(0)] = 0.0
    batch_tokens: Annotated[int, Range(0)] = 0
    polish_batches: Annotated[int, Range(0)] = 0
    polish_waste: Annotated[float, Range(0, 1)] = 0.6
    polish_learning_rate: Annotated[float, Range(0)] = 0.0
    seed: Annotated[int, Range(-1)] = -1

    def __post_init__(self) -> None:
        check_settings(self, "warm_start.")

    def seed_for(self, run: int) -> int:
        """Returns the seed of the warm start in a run whose seed is `run`."""
        return run if self.seed < 0 else self.seed

    def for_model(self, parameters: int, *, lora: bool = False) -> WarmStart:
        """Returns the settings for a model of this size, with no 0 left that stands for a default.

        Args:
            parameters: The number of the model's parameters, its frozen ones included.
            lora: Whether only adapters are trained.

        >>> tiny, real = WarmStart(episodes=9).for_model(100_000), WarmStart(episodes=9).for_model(7_600_000_000)
        >>> (tiny.max_batches, tiny.learning_rate, tiny.batch_tokens)
        (500, 0.003, 600)
        >>> (real.max_batches, round(real.learning_rate, 6), real.batch_tokens)
        (60, 1.3e-05, 4096)
        """
        tiny = parameters < LEAST_PRETRAINED
        rate = 3e-3 if tiny else _RATE * (_SMOLLM2 / parameters) ** 0.5 * (_LORA_FACTOR if lora else 1)
        rate = self.learning_rate or rate
        return dataclasses.replace(
            self,
            max_batches=self.max_batches or (500 if tiny else 60),
            learning_rate=rate,
            batch_tokens=self.batch_tokens or (600 if tiny else 4096),
            polish_learning_rate=self.polish_learning_rate or rate / 3,
        )
