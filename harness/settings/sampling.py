"""What samples the actions, and how it is set up: a section for each engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from eh_gym.errors import ConfigError
from eh_gym.ranges import Range, near
from harness.settings.section import Choice, Section

_WRONG = "leave it out, because training would be wrong with another value"
_SERVER = "a model that needs several GPUs to sample needs --sampler vllm-server"
_SET_HERE = {
    **dict.fromkeys(("model", "load_format", "skip_tokenizer_init", "generation_config", "seed"), _WRONG),
    **dict.fromkeys(("logprobs_mode", "hf_overrides", "enable_sleep_mode", "distributed_executor_backend"), _WRONG),
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), _SERVER),
    "dtype": "give --dtype",
    "max_model_len": "give --max-context",
    "gpu_memory_utilization": "give --gpu-memory-utilization",
}
"""What the harness sets itself, each with what to do instead."""


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
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's EngineArgs, as a JSON object, such as '{"kv_cache_dtype": "fp8"}': docs/vllm.md."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.engine_args:
            if name in _SET_HERE:
                raise ConfigError(f"--engine-args must not have {name}; {_SET_HERE[name]}")


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
    text="What samples: the trained model itself (transformers), vLLM in this process (vllm), or vLLM servers "
    "(vllm-server).",
    classes=SAMPLERS,
    named=_named,
    name_of=lambda sampling: str(sampling.sampler),
    check=_check,
)
