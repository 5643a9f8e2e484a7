"""Flags about the optimizer: the learning rate, and how an update is cut into steps and forward passes."""

from __future__ import annotations

from dataclasses import dataclass

from eh_gym.errors import ConfigError

__all__ = ["OptimizerFlags"]


@dataclass(frozen=True)
class OptimizerFlags:
    """How the policy is optimized."""

    learning_rate: float = 1e-6
    """AdamW's learning rate after the warm-up."""
    warmup_updates: int = 0
    """The number of updates over which the learning rate rises from 0."""
    final_lr_fraction: float = 1.0
    """The learning rate falls linearly towards this fraction of itself, which it would reach after the last update."""
    adam_beta2: float = 0.999
    """AdamW's coefficient for the second moment. The one for the first moment is 0.9."""
    weight_decay: float = 0.01
    """AdamW's weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    minibatches: int = 1
    """The number of optimizer steps per update."""
    tokens_per_microbatch: int = 16_384
    """The most tokens in one forward pass, but at least one whole episode. It changes memory and speed, not the result."""

    def check_optimizer(self) -> None:
        """Raises ConfigError for a norm that would clip everything away."""
        if not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm must be > 0, got {self.max_grad_norm}; inf clips nothing")
