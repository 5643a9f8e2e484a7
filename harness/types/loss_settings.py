"""What the policy update is told about its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Aggregation", "LossSettings"]

Aggregation = Literal["seq-mean", "token-mean"]


@dataclass(frozen=True)
class LossSettings:
    """How a batch of episodes becomes a gradient.

    Attributes:
        temperature: The sampler's temperature. The loss is about the distribution that was sampled.
        clip_low: The ratio is clipped at 1 - clip_low.
        clip_high: The ratio is clipped at 1 + clip_high.
        kl_coef: The weight of the KL estimate to the reference policy, 0 for none.
        aggregation: How the losses of the tokens become one number.
        normalize_std: Whether advantages are divided by the standard deviation of their group.
        truncated_weight: The weight of the advantages of truncated episodes, 0..1, except those that filled the context; all
            count in the mean of their group.
        minibatches: The number of optimizer steps per update.
        tokens_per_microbatch: The most tokens in one forward pass. It changes the memory, not the result.
        max_grad_norm: Gradients are clipped to this norm.
        tis_cap: The cap of the importance weights, >= 1; 0 for none.
    """

    temperature: float
    clip_low: float
    clip_high: float
    kl_coef: float
    aggregation: Aggregation
    normalize_std: bool
    truncated_weight: float
    minibatches: int
    tokens_per_microbatch: int
    max_grad_norm: float
    tis_cap: float
