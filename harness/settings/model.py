"""Flags about the model: which one, in which precision, and which of its weights are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from eh_gym.errors import ConfigError
from harness.settings.ranges import Range
from harness.settings.sampling import SamplingFlags

__all__ = ["ModelFlags"]


@dataclass(frozen=True)
class ModelFlags:
    """Which language model is trained."""

    model: str = "tiny"
    """The model: tiny (made on the spot), a Hugging Face folder, or a hub id."""
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    """The type of the computation and of the sampler's weights; the optimizer keeps float32. auto takes bfloat16, but float32 on
    a CPU that is slow with it."""
    lora_rank: Annotated[int, Range(0)] = 0
    """Train LoRA adapters of this rank alone; 0 trains all weights. With it, a large model has learning_rate 1e-5, tis_cap 2, and
    with vllm gpu_memory_utilization 0.65."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: a third more time, and far less memory for long episodes."""
    keep_attention: bool = False
    """With --gradient-checkpointing: keep the outputs of attention, which cost most to compute again in a long episode."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Fuse the small operations of each layer with torch.compile. auto: on a GPU where vLLM samples."""
    packing: bool = True
    """Train on rows that hold several episodes one after another, without padding, if the model can. --no-packing pads them."""

    def check_compile(self, sampler: SamplingFlags) -> None:
        """Raises ConfigError if the layers that would be compiled also sample, whose shapes change with every token."""
        if self.compile == "on" and sampler.sampler == "transformers":
            raise ConfigError(
                "--compile on needs --sampler vllm or vllm-server, because the transformers sampler runs the same layers token "
                "by token; leave it out"
            )
