"""What samples the actions, and how it is set up: a section for each engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, cast

from eh_gym.errors import ConfigError
from eh_gym.horizon.make import find_class
from eh_gym.ranges import Range
from harness.settings.section import FIRST, Changes, Choice, Section

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
    """What all samplers have. The defaults of the class variables suit a program elsewhere that samples for one run."""

    changes = Changes.RESULT

    sampler: ClassVar[str]
    """The name of the sampler, ``MODULE:CLASS`` of this section for one that is not in `SAMPLERS`."""
    implementation: ClassVar[str]
    """The `harness.types.sampler.Sampler` as MODULE:CLASS. It is called with the policy's model, with ``max_context``
    (None for the model's limit) and ``version``, and with `arguments`."""
    checked_by: ClassVar[str] = ""
    """MODULE:FUNCTION, which gets this section and the device, and raises ConfigError if an engine is not ready."""
    package: ClassVar[str] = ""
    """The package that it needs, which is also the name of an extra."""
    preloaded_by: ClassVar[str] = ""
    """MODULE:FUNCTION, which imports the package if that takes long. It is called while the policy is made."""
    runs_policy: ClassVar[bool] = False
    """Whether it runs the policy's own layers. Others have weights of their own."""
    shares_gpu: ClassVar[bool] = False
    """Whether each rank has an engine, on the rank's own GPU, which reads sharded weights by itself."""
    shares_servers: ClassVar[bool] = False
    """Whether runs at the same time would sample with the same servers."""
    memory_flag: ClassVar[str] = ""
    """The flag that limits its memory on the trainer's GPU."""

    max_context: Annotated[int, Range(0)] = 0
    """The most tokens of an episode. A longer episode ends as truncated. 0 takes the model's own limit."""

    def arguments(self, **place: Any) -> dict[str, Any]:
        """Returns further arguments of the `implementation`; `place` are those of `make_sampler`."""
        return {}


@dataclass(frozen=True)
class TransformersSampling(Sampling):
    """The trained model itself samples."""

    sampler = "transformers"
    implementation = "harness.sampling.transformers:TransformersSampler"
    runs_policy = True


@dataclass(frozen=True)
class VLLMSampling(Sampling):
    """A vLLM engine in this process samples. It needs a GPU beside the trainer's memory, or takes turns with it."""

    sampler = "vllm"
    implementation = "harness.sampling.vllm.engine:VLLMSampler"
    package = "vllm"
    preloaded_by = "harness.sampling.vllm.engine:import_vllm"
    shares_gpu = True
    memory_flag = "--gpu-memory-utilization"

    gpu_memory_utilization: Annotated[float, Range(0, 1, above=True), Changes.MACHINE] = 0.5
    """The share of the GPU's memory that vLLM takes while it samples."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's EngineArgs, as a JSON object, such as '{"kv_cache_dtype": "fp8"}': docs/vllm.md."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.engine_args:
            if name in _SET_HERE:
                raise ConfigError(f"--engine-args must not have {name}; {_SET_HERE[name]}")

    def arguments(self, **place: Any) -> dict[str, Any]:
        engine = {"gpu_memory_utilization": self.gpu_memory_utilization, "engine_args": self.engine_args}
        return engine | {name: place[name] for name in ("dtype", "device", "slots")}


@dataclass(frozen=True)
class VLLMServerSampling(Sampling):
    """VLLM servers sample: docs/vllm.md."""

    sampler = "vllm-server"
    implementation = "harness.sampling.vllm.server:VLLMServerSampler"
    checked_by = "harness.sampling.vllm.settings:check_servers"
    shares_servers = True

    url: Annotated[str, Changes.MACHINE, FIRST] = "http://localhost:8000"
    """The address of the vLLM server, http://HOST:PORT. Several addresses have commas between them."""

    @property
    def urls(self) -> list[str]:
        return self.url.split(",")

    def arguments(self, **place: Any) -> dict[str, Any]:
        return {"urls": self.urls, **{name: place[name] for name in ("device", "sends", "sharers")}}


SAMPLERS: dict[str, type[Sampling]] = {
    kind.sampler: kind for kind in (TransformersSampling, VLLMSampling, VLLMServerSampling)
}
"""The samplers, by name."""


def _make(name: str) -> Sampling:
    kind = find_class(name, SAMPLERS, "sampler")
    made = kind() if isinstance(kind, type) and issubclass(kind, Sampling) else kind
    _check(made)
    return cast(Sampling, made)


def _check(sampling: object) -> None:
    if not isinstance(sampling, Sampling) or not hasattr(sampling, "implementation"):
        kinds = ", ".join(kind.__name__ for kind in SAMPLERS.values())
        raise ConfigError(f"sampling must be one of {kinds}, or a subclass of Sampling of your own, got {sampling!r}")


SAMPLING = Choice(
    flag="sampler",
    text="What samples: the trained model itself (transformers), vLLM in this process (vllm), vLLM servers "
    "(vllm-server), or a sampler of your own, MODULE:CLASS.",
    classes=SAMPLERS,
    make=_make,
    name_of=lambda sampling: str(sampling.sampler),
    check=_check,
)
