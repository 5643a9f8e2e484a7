"""Flags about the optimizer: the learning rate, and how an update is cut into steps and forward passes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from eh_gym.errors import ConfigError
from harness.settings.ranges import NoFlag, Range

__all__ = ["OptimizerFlags"]


@dataclass(frozen=True)
class OptimizerFlags:
    """How the policy is optimized."""

    learning_rate: Annotated[float, Range(0)] = 1e-6
    """AdamW's learning rate after the warm-up."""
    warmup_updates: Annotated[int, Range(0)] = 0
    """The number of updates over which the learning rate rises from 0."""
    final_lr_fraction: Annotated[float, Range(0, 1)] = 1.0
    """The learning rate falls linearly towards this fraction of itself, reached after the last update."""
    adam_beta2: NoFlag[Annotated[float, Range(0, 0.99999)]] = 0.999
    """AdamW's coefficient for the second moment. The one for the first moment is 0.9."""
    weight_decay: Annotated[float, Range(0)] = 0.01
    """AdamW's weight decay."""
    max_grad_norm: NoFlag[Annotated[float, Range(0, math.inf, above=True)]] = 1.0
    """Gradients are clipped to this norm."""
    minibatches: Annotated[int, Range(1)] = 1
    """The number of optimizer steps per update."""
    tokens_per_microbatch: Annotated[int, Range(1)] = 16_384
    """The most tokens in a forward pass, but at least an episode. It changes memory and speed alone."""
    offload_optimizer: bool = False
    """Keep AdamW's moments in the host's memory during the rollout, so that an engine's cache has their place."""

    def check_offload(self, max_staleness: int) -> None:
        """Raises ConfigError if episodes are played during the update, too."""
        if self.offload_optimizer and max_staleness:
            raise ConfigError(
                f"--offload-optimizer needs --max-staleness 0, because sampling and training take turns only then, got "
                f"{max_staleness}; leave one of them out"
            )
