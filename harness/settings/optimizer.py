"""The optimizer: what is trained, how fast, and how an update is cut into steps and forward passes."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from eh_gym.ranges import Range
from harness.settings.section import FIRST, Changes, NoFlag, Section


@dataclass(frozen=True)
class Optimizer(Section):
    """How the policy is optimized."""

    changes = Changes.RESULT

    learning_rate: Annotated[float, Range(0), FIRST] = 1e-6
    """AdamW's learning rate after the warm-up."""
    warmup_updates: Annotated[int, Range(0)] = 0
    """The number of updates over which the learning rate rises from 0."""
    final_lr_fraction: Annotated[float, Range(0, 1)] = 1.0
    """The learning rate falls linearly, to this fraction of itself after the last update."""
    adam_beta2: NoFlag[Annotated[float, Range(0, 0.99999)]] = 0.999
    """AdamW's coefficient for the second moment. The one for the first moment is 0.9."""
    weight_decay: Annotated[float, Range(0)] = 0.01
    """AdamW's weight decay."""
    max_grad_norm: NoFlag[Annotated[float, Range(0, math.inf, above=True)]] = 1.0
    """Gradients are clipped to this norm."""
    minibatches: Annotated[int, Range(1)] = 1
    """The number of optimizer steps per update."""
    lora_rank: Annotated[int, Range(0), FIRST] = 0
    """Train only LoRA adapters, of this rank; 0 trains all weights. --recipe lora has the settings that suit them."""
    tokens_per_microbatch: Annotated[int, Range(1), Changes.MACHINE] = 16_384
    """The most tokens in a forward pass, but at least an episode. It changes memory and speed alone."""
    recompute: Annotated[Literal["all", "fit", "none"], Changes.MACHINE] = "all"
    """Whose activations are computed again in the backward pass: those of all layers, which takes a third more time and
    far less memory, of none, or on a GPU of as few as its memory needs."""
    offload_optimizer: Annotated[bool, Changes.MACHINE] = False
    """Keep AdamW's moments in the host's memory during the rollout, which leaves their place to an engine's cache."""
    packing: bool = True
    """Train on rows that hold several episodes one after another, without padding, if the model can. --no-packing pads
    them."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Fuse the small operations of each layer with torch.compile. auto does so on a GPU if vLLM samples."""

    def learning_rate_at(self, update: int, updates: int) -> float:
        """Returns the learning rate of one of `updates` updates: linear warm-up times linear decay."""
        warm = min(1.0, (update + 1) / max(1, self.warmup_updates))
        return self.learning_rate * warm * (1.0 - (1.0 - self.final_lr_fraction) * update / updates)
