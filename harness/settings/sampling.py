"""What samples the actions, and how it is set up: a section for each engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from eh_gym.errors import ConfigError
from eh_gym.ranges import Range, near
from harness.settings.section import Choice, Section

__all__ = ["SAMPLERS", "SAMPLING", "Sampling", "TransformersSampling", "VLLMSampling", "VLLMServerSampling"]


@dataclass(frozen=True)
class Sampling(Section):
    """What all samplers have."""

    sampler: ClassVar[str]
    """The name of the sampler."""

    max_context: Annotated[int, Range(0)] = 0
    """The most tokens of an episode. A longer episode ends as truncated. 0 takes the model's own limit."""


@dataclass(frozen=True)
class TransformersSampling(Sampling):
    """The trained model itself samples."""

    sampler: ClassVar[str] = "transformers"


@dataclass(frozen=True)
class VLLMSampling(Sampling):
    """A vLLM engine in this process samples. It needs a GPU beside the trainer's memory, or takes turns with it."""

    sampler: ClassVar[str] = "vllm"

    gpu_memory_utilization: Annotated[float, Range(0, 1, above=True)] = 0.5
    """The share of the GPU's memory that vLLM takes while it samples."""


@dataclass(frozen=True)
class VLLMServerSampling(Sampling):
    """VLLM servers sample: docs/vllm.md."""

    sampler: ClassVar[str] = "vllm-server"

    url: str = "http://localhost:8000"
    """The address of the vLLM server, http://HOST:PORT. Several addresses have commas between them."""


SAMPLERS: dict[str, type[Sampling]] = {
    kind.sampler: kind for kind in (TransformersSampling, VLLMSampling, VLLMServerSampling)
}
"""The samplers, by name."""


def _named(name: str) -> Sampling:
    if name not in SAMPLERS:
        raise ConfigError(f"--sampler must be one of {', '.join(SAMPLERS)}, got {name!r}{near(name, SAMPLERS)}")
    return SAMPLERS[name]()


def _check(sampling: object) -> None:
    if type(sampling) not in SAMPLERS.values():
        kinds = ", ".join(kind.__name__ for kind in SAMPLERS.values())
        raise ConfigError(f"sampling must be one of {kinds}, got {sampling!r}")


SAMPLING = Choice(
    flag="sampler",
    text="What samples: the trained model itself (transformers), vLLM in this process (vllm), or vLLM servers (vllm-server).",
    classes=SAMPLERS,
    named=_named,
    name_of=lambda sampling: str(sampling.sampler),
    check=_check,
)
