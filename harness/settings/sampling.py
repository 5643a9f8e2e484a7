"""Flags about the sampler: which engine samples the actions, and how it is set up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from eh_gym.errors import ConfigError
from harness.settings.ranges import Range

__all__ = ["SamplingFlags"]


@dataclass(frozen=True)
class SamplingFlags:
    """What samples the actions."""

    sampler: Literal["transformers", "vllm", "vllm-server"] = "transformers"
    """What samples: the trained model itself (transformers), vLLM in this process (vllm), or vLLM servers (vllm-server)."""
    url: str = ""
    """The address of the vLLM server, http://HOST:PORT. Several addresses have commas between them."""
    max_context: Annotated[int, Range(0)] = 0
    """The most tokens of an episode. A longer episode ends as truncated. 0 takes the model's own limit."""
    gpu_memory_utilization: Annotated[float, Range(0, 1, above=True)] = 0.5
    """The share of the GPU's memory that vLLM takes while it samples."""

    def check_sampler(self) -> None:
        """Raises ConfigError for flags that the chosen sampler does not have."""
        if bool(self.url) != (self.sampler == "vllm-server"):
            raise ConfigError(
                f"--url goes with --sampler vllm-server, got --sampler {self.sampler} and --url {self.url!r}"
            )
