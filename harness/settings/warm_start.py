"""Flags about the warm start: behaviour cloning before the first update."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WarmStart"]


@dataclass(frozen=True)
class WarmStart:
    """How the environment's expert is cloned before the first update.

    Attributes:
        episodes: The number of expert demonstrations; 0 turns the warm start off.
        max_optimal_steps: Only tasks that the expert solves in at most this many steps are used; 0 uses all. If the
            clone has seen only short tasks, GRPO has to learn the long ones.
        max_steps: A demonstration is stopped after this many steps.
        max_tokens: A longer demonstration is dropped.
        loss_target: Cloning stops when the mean loss of 10 batches is below this target, in nats per token.
        max_batches: Cloning stops after this many batches in any case.
        learning_rate: The learning rate of the cloning.
        batch_tokens: The number of tokens per batch, padding included.
        polish_batches: The number of further batches, in which half of the demonstrations waste steps, so that the policy
            explores.
        polish_waste: The probability that a step of a wasteful demonstration is a random action.
        polish_learning_rate: The learning rate of these last batches.
    """

    episodes: int = 0
    max_optimal_steps: int = 0
    max_steps: int = 60
    max_tokens: int = 4096
    loss_target: float = 0.03
    max_batches: int = 500
    learning_rate: float = 3e-3
    batch_tokens: int = 600
    polish_batches: int = 0
    polish_waste: float = 0.6
    polish_learning_rate: float = 1e-3
