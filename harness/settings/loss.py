"""Flags about the loss, and the settings that the policy update gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eh_gym.errors import ConfigError

__all__ = ["Aggregation", "LossFlags", "LossSettings"]

Aggregation = Literal["seq-mean", "token-mean", "fixed-length"]


@dataclass(frozen=True)
class LossFlags:
    """How the episodes of an update become a loss."""

    clip_low: float = 0.2
    """The probability ratio is clipped at 1 - clip_low."""
    clip_high: float = 0.2
    """The probability ratio is clipped at 1 + clip_high."""
    kl_coef: float = 0.0
    """The weight of the KL estimate to the initial policy."""
    aggregation: Aggregation = "token-mean"
    """How the losses of the tokens become one number."""
    fixed_length: int = 0
    """With --aggregation fixed-length: the sum is divided by this many tokens per episode. 0 takes k_max x max_action_tokens."""
    normalize_std: bool = True
    """Divide the advantages by the standard deviation of their group. --no-normalize-std only subtracts the mean (Dr.GRPO)."""
    train_on_truncated: bool = True
    """Whether episodes that K stopped are in the loss. They count in the mean of their group in any case."""
    train_reasoning: bool = True
    """Whether the loss is about the model's thoughts too. --no-train-reasoning trains on the answers alone."""
    tis_cap: float = 0.0
    """Weight each token by min(trainer's / sampler's probability, this cap), >= 1. 0 uses no weights."""

    def check_loss(self) -> None:
        """Raises ConfigError for a cap below 1."""
        if self.tis_cap and not self.tis_cap >= 1:
            raise ConfigError(f"tis_cap must be 0 (off) or >= 1, got {self.tis_cap}; 2 is usual")


@dataclass(frozen=True)
class LossSettings:
    """How a batch of episodes becomes a gradient.

    Attributes:
        temperature: The sampler's temperature. The loss is about the distribution that was sampled.
        clip_low: The ratio is clipped at 1 - clip_low.
        clip_high: The ratio is clipped at 1 + clip_high.
        kl_coef: The weight of the KL estimate to the reference policy, 0 for none.
        aggregation: How the losses of the tokens become one number.
        fixed_length: The number of tokens per episode that "fixed-length" divides by. It is a constant, so it does not move
            with K.
        normalize_std: Whether advantages are divided by the standard deviation of their group.
        train_on_truncated: Whether truncated episodes are in the loss. They always count in the mean of their group.
        minibatches: The number of optimizer steps per update.
        tokens_per_microbatch: The most tokens in one forward pass. It changes the memory, not the result.
        max_grad_norm: Gradients are clipped to this norm.
        tis_cap: The cap of the truncated importance weights, >= 1; 0 for none.
    """

    temperature: float
    clip_low: float
    clip_high: float
    kl_coef: float
    aggregation: Aggregation
    fixed_length: int
    normalize_std: bool
    train_on_truncated: bool
    minibatches: int
    tokens_per_microbatch: int
    max_grad_norm: float
    tis_cap: float
