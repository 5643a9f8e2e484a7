"""The loss."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from eh_gym.ranges import Range
from harness.settings.section import Changes, Section

Aggregation = Literal["seq-mean", "token-mean"]
"""The names of all modes; `harness.update.loss.aggregate` computes them."""


@dataclass(frozen=True)
class Loss(Section):
    """How the episodes of an update become a loss."""

    changes = Changes.RESULT

    clip_low: Annotated[float, Range(0, 1)] = 0.2
    """A token's probability ratio is clipped at 1 - clip_low."""
    clip_high: Annotated[float, Range(0, math.inf)] = 0.2
    """A token's probability ratio is clipped at 1 + clip_high."""
    kl_coef: Annotated[float, Range(0)] = 0.0
    """The weight of the KL estimate to the initial policy."""
    aggregation: Aggregation = "token-mean"
    """How the losses of the tokens become one number."""
    normalize_std: bool = True
    """Divide the advantages by the standard deviation of their group. --no-normalize-std only subtracts the mean
    (Dr.GRPO)."""
    truncated_weight: Annotated[float, Range(0, 1)] = 1.0
    """The weight of the advantages of episodes that K or the environment's own limit stopped. 1 is the paper's; 0
    leaves them out of the loss and its divisor. They always count in their group's mean. Episodes that filled the
    context keep weight 1."""
    tis_cap: Annotated[float, Range(1, math.inf, zero=True)] = 0.0
    """Weight each token by trainer's / sampler's probability, at most this cap (>= 1). 0 weights none."""
