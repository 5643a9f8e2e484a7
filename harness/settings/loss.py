"""Flags about the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from eh_gym.errors import ConfigError
from harness.settings.ranges import Range
from harness.types.loss_settings import Aggregation, Loss

__all__ = ["LossFlags"]

# The clips below and above 1 of each loss, as far as they are published: GRPO's are those of this project's paper.
# GSPO's: arXiv 2507.18071, section 5.1.
_CLIPS: dict[Loss, tuple[float, float]] = {"grpo": (0.2, 0.2), "gspo": (3e-4, 4e-4)}


@dataclass(frozen=True)
class LossFlags:
    """How the episodes of an update become a loss."""

    loss: Loss = "grpo"
    """grpo: clip each token's probability ratio. gspo: clip one ratio per episode, the geometric mean of its tokens'."""
    clip_low: Annotated[float, Range(0, 1)] = 0.0
    """The ratio is clipped at 1 - clip_low. 0 takes what is usual: 0.2 (grpo), 0.0003 (gspo)."""
    clip_high: Annotated[float, Range(0, math.inf)] = 0.0
    """The ratio is clipped at 1 + clip_high. 0 takes what is usual: 0.2 (grpo), 0.0004 (gspo)."""
    kl_coef: Annotated[float, Range(0)] = 0.0
    """The weight of the KL estimate to the initial policy."""
    aggregation: Aggregation = "token-mean"
    """How the losses of the tokens become one number."""
    normalize_std: bool = True
    """Divide the advantages by the standard deviation of their group. --no-normalize-std only subtracts the mean (Dr.GRPO)."""
    truncated_weight: Annotated[float, Range(0, 1)] = 1.0
    """The weight of the advantages of episodes that K or the environment's own limit stopped. 1 is the paper's; 0 leaves them out
    of the loss and its divisor. They always count in their group's mean. Episodes that filled the context keep weight 1."""
    tis_cap: Annotated[float, Range(1, math.inf, zero=True)] = 0.0
    """Weight each token by min(trainer's / sampler's probability, this cap), >= 1. 0 uses no weights."""

    def check_loss(self) -> None:
        """Raises ConfigError for combinations that mean nothing."""
        if self.loss == "gspo" and self.aggregation != "seq-mean":
            raise ConfigError("GSPO is a mean over episodes: add --aggregation seq-mean")

    @property
    def clips(self) -> tuple[float, float]:
        """How far below and above 1 the ratio may lie: what was given, else what is usual for the loss."""
        low, high = _CLIPS[self.loss]
        return self.clip_low or low, self.clip_high or high
