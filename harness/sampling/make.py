"""Which sampler a command uses: the flags that say so, and what they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eh_gym.errors import ConfigError
from harness.policy import Policy
from harness.sampling.base import Sampler
from harness.sampling.transformers import TransformersSampler
from harness.sampling.vllm import VLLMSampler
from harness.sampling.vllm_server import VLLMServerSampler

__all__ = ["SamplerSettings", "make_sampler"]


@dataclass(frozen=True)
class SamplerSettings:
    """What samples the actions."""

    sampler: Literal["transformers", "vllm", "vllm-server"] = "transformers"
    """The model itself, a vLLM engine in this process, or vLLM servers."""
    url: str = ""
    """vllm-server's address, http://HOST:PORT; several with commas between them."""
    max_context: int = 0
    """The most tokens of an episode, which then ends as truncated; 0 for the model's own."""
    tensor_parallel: int = 1
    """How many GPUs share vllm's model."""
    gpu_memory_utilization: float = 0.5
    """vllm's share of the GPU's memory while it samples; the trainer's while the policy updates."""
    sampler_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of vllm's weights; auto for the policy's own."""
    quantization: str = ""
    """What vllm rounds the weights to as they come, fp8 for one; empty for nothing."""

    def check_sampler(self) -> None:
        """Raises ConfigError for flags that the sampler does not have."""
        if bool(self.url) != (self.sampler == "vllm-server"):
            raise ConfigError(
                f"--url goes with --sampler vllm-server, got --sampler {self.sampler} and --url {self.url!r}"
            )
        for name in ("tensor_parallel", "gpu_memory_utilization", "sampler_dtype", "quantization"):
            if self.sampler != "vllm" and getattr(self, name) != getattr(SamplerSettings, name):
                raise ConfigError(
                    f"--{name.replace('_', '-')} is for --sampler vllm, got --sampler {self.sampler}; "
                    "servers have their own flags"
                )


def make_sampler(
    settings: SamplerSettings,
    policy: Policy,
    *,
    device: str | None = None,
    sends: bool = True,
    adapters: bool = False,
) -> Sampler:
    """The sampler of a policy; an engine of its own takes over the policy's weights.

    Args:
        settings: Which one.
        policy: What it samples with.
        device: Whence servers are sent its weights; None for where they are.
        sends: Whether this process sends servers their weights; of several that share them one does.
        adapters: Whether vLLM gets the policy's LoRA adapters apart; else they are merged into the weights.
    """
    settings.check_sampler()
    max_context = settings.max_context or None
    if settings.sampler == "vllm-server":
        urls = settings.url.split(",")
        return VLLMServerSampler(
            policy.model, urls, max_context=max_context, device=device, sends=sends, adapters=adapters
        )
    if settings.sampler == "vllm":
        return VLLMSampler(
            policy.model,
            policy.tokenizer,
            max_context=max_context,
            dtype=None if settings.sampler_dtype == "auto" else settings.sampler_dtype,
            quantization=settings.quantization or None,
            tensor_parallel=settings.tensor_parallel,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            adapters=adapters,
        )
    return TransformersSampler(policy.model, max_context=max_context)
