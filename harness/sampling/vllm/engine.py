"""Samples with a vLLM engine inside the trainer's process, on the trainer's own GPU (or CPU).

The engine starts with random weights, and takes over the policy's weights from memory, at the start and after every
update. Only the model's configuration is on disk.
"""

import contextlib
import copy
import hashlib
import itertools
import math
import os
import tempfile
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from transformers import PreTrainedModel

from eh_gym.errors import ConfigError, MissingExtraError, SamplerError
from eh_gym.ranges import near
from envs.cache import cache_dir
from harness.model.lora import plain_parameters
from harness.sampling.vllm.settings import FLOAT32_LOGITS, cache_tokens, check_model, sampling_parameters
from harness.sampling.vllm.worker import pack_on_cpu
from harness.types.sampler import Sample, SampleRequest, check_request, checked_context, sample_of, spans

_CPU_CACHE_BYTES = 512 << 20  # without a limit, vLLM takes most of the machine's memory


@dataclass
class _Growing:
    request: SampleRequest
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class VLLMSampler:
    """A `Sampler` over an engine that holds its own copy of the policy's weights.

    Args:
        model: The policy. Its weights are read at the start and by `weights_changed`.
        max_context: The most tokens of an episode. The default, which is also the maximum, is the model's number of
            positions.
        gpu_memory_utilization: The engine's share of the GPU's memory. What the trainer holds during sampling must fit
            into the rest. On a CPU, vLLM's cache gets 512 MiB, or what one episode needs.
        engine_args: Further arguments of vLLM's ``EngineArgs``, such as ``{"kv_cache_dtype": "fp8"}``.
        dtype, device, slots, version: As in `make_sampler`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_context: int | None = None,
        dtype: str | None = None,
        gpu_memory_utilization: float = 0.5,
        engine_args: Mapping[str, Any] | None = None,
        device: str | None = None,
        slots: int | None = None,
        version: int = 0,
    ) -> None:
        config = model.config.get_text_config()
        self.max_context = checked_context(max_context, int(config.max_position_embeddings))
        check_model(model)
        self._model = model
        self._vocab_size = int(config.vocab_size)
        self._version = version
        self._numbers = itertools.count()
        self._running: dict[str, _Growing] = {}
        self._names: dict[Hashable, str] = {}
        self._asleep = False
        self._device = torch.device(device) if device else model.device
        self._on_gpu = self._device.type == "cuda"
        name = dtype or str(model.dtype).removeprefix("torch.")
        self._dtype: torch.dtype = getattr(torch, name)
        options: dict[str, Any]
        if self._on_gpu:
            options = {"gpu_memory_utilization": gpu_memory_utilization, "enable_sleep_mode": True}
            options |= {"max_num_seqs": slots} if slots else {}
        else:
            # Compiling vLLM's small functions would take half a minute in the first step, and gains nothing on a CPU.
            torch._dynamo.config.disable = True
            options = {
                "enforce_eager": True,
                "block_size": 32,
                "kv_cache_memory_bytes": _cpu_cache_bytes(config, self.max_context),
                # After a chunk of a prompt, vLLM resets the request's generator, which crashes on a CPU.
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(4096, self.max_context),
            }
        if "TORCHELASTIC_RUN_ID" in os.environ:  # each rank has an engine, which uses the ranks' torch.distributed
            options["distributed_executor_backend"] = "external_launcher"
        self._engine = _start_engine(
            self._device,
            {
                "model": str(_folder_of(model)),
                "dtype": name,
                "max_model_len": self.max_context,
                **options,
                **(engine_args or {}),
            },
        )
        self._cache_tokens = cache_tokens(vars(self._engine.vllm_config.cache_config))
        self._prompt_tokens = self._cached_tokens = 0
        self._take_over_weights()

    def cache_of(self, session: Hashable) -> tuple[Hashable, int]:
        return None, self._cache_tokens

    def cache_metrics(self) -> dict[str, float]:
        hits = self._cached_tokens / self._prompt_tokens if self._prompt_tokens else math.nan
        self._prompt_tokens = self._cached_tokens = 0
        return {"rollout/cache_hits": hits}

    @property
    def pending(self) -> int:
        return len(self._running)

    def submit(self, request: SampleRequest) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        assert not self._asleep, "weights_changed() wakes the sampler"
        check_request(request, vocab_size=self._vocab_size, max_context=self.max_context, running=self._names)
        parameters = SamplingParams(**sampling_parameters(request), output_kind=RequestOutputKind.DELTA)
        name = str(next(self._numbers))
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        self._engine.add_request(name, prompt, parameters)
        self._running[name] = _Growing(request)
        self._names[request.session] = name

    def step(self) -> list[tuple[SampleRequest, Sample]]:
        if not self._running:
            return []
        done: list[tuple[int, SampleRequest, Sample]] = []
        # In a new thread the first GPU is the present one, on which vLLM's kernels run.
        with torch.cuda.device(self._device) if self._on_gpu else contextlib.nullcontext():
            outputs = self._engine.step()
        for output in outputs:
            state = self._running.get(output.request_id)
            if state is None:  # its session was ended
                continue
            new = output.outputs[0]
            state.ids += new.token_ids
            state.logprobs += [at[token].logprob for at, token in zip(new.logprobs, new.token_ids, strict=True)]
            state.versions += [self._version] * len(new.token_ids)
            if output.finished:
                if new.finish_reason not in ("stop", "length"):
                    raise SamplerError(f"vLLM ended a request with {new.finish_reason!r}: {state.request}")
                self._prompt_tokens += len(state.request.prompt_ids)
                self._cached_tokens += output.num_cached_tokens or 0
                sample = sample_of(state.request, state.ids, state.logprobs, spans(state.versions))
                done.append((int(output.request_id), state.request, sample))
                del self._running[output.request_id], self._names[state.request.session]
        return [(request, sample) for _, request, sample in sorted(done, key=lambda d: d[0])]

    def end_session(self, session: Hashable) -> None:
        """Drops the session's request. Its keys and values stay until vLLM needs the memory."""
        name = self._names.pop(session, None)
        if name is not None:
            del self._running[name]
            self._engine.abort_request([name])

    def sleep(self) -> None:
        assert not self._running, "requests are pending"
        if self._on_gpu:
            self._engine.sleep(level=2)
            self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self.weights_changed()
            self._version -= 1

    def weights_changed(self) -> int:
        if self._asleep:
            self._engine.wake_up(tags=["weights"])
        self._take_over_weights()
        if self._asleep:
            self._engine.wake_up(tags=["kv_cache"])
            self._asleep = False
        # Running requests compute their keys and values again, too. With stale ones they would be off by 1.7 to 3.5
        # nats.
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise SamplerError("vLLM did not empty its prefix cache after a weight update")
        self._version += 1
        return self._version

    def close(self) -> None: ...

    def _take_over_weights(self) -> None:
        weights = plain_parameters(self._model, self._dtype, self._device)
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self._engine.apply_model(pack_on_cpu)


def _cpu_cache_bytes(config: Any, max_context: int) -> int:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    episode = 2 * config.num_hidden_layers * heads * max(dim, 32) * 4 * (max_context + 64)
    return int(max(_CPU_CACHE_BYTES, 2 * episode))


def _folder_of(model: PreTrainedModel) -> Path:
    """A folder in the cache with the model's configuration. The same configuration has the same path.

    So vLLM finds what it compiled at an earlier start, which takes 20 to 45 s.
    """
    engines = cache_dir() / "engines"
    engines.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__.removeprefix("FSDP")]  # `fully_shard` renames the class
    folder = engines / hashlib.sha256(config.to_json_string().encode()).hexdigest()[:16]
    with tempfile.TemporaryDirectory(dir=engines) as new:
        config.save_pretrained(new)
        with contextlib.suppress(OSError):  # it is there already
            Path(new).rename(folder)
    return folder


def import_vllm() -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vLLM is imported; else vLLM warns at each update
    try:
        import vllm.v1.engine.llm_engine
        import vllm.v1.executor  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"vLLM can't be imported ({error}); docs/vllm.md has the steps") from error


def _start_engine(device: torch.device, options: Mapping[str, Any]) -> Any:
    import_vllm()
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import Executor

    names = [argument.name for argument in fields(EngineArgs)]
    for name in options:
        if name not in names:
            meant = near(name, names)
            raise ConfigError(
                f"vLLM's EngineArgs have no {name!r}"
                + (meant if "did you mean" in meant else "; see vllm serve --help=all")
            )
    ours = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,  # only token ids go in and out
        "generation_config": "vllm",  # no defaults from the model's folder
        "logprobs_mode": "processed_logprobs",  # those of the sampled distribution; the default ignores the temperature
        "hf_overrides": FLOAT32_LOGITS,
        "disable_log_stats": True,
        "seed": 0,
    }
    arguments = EngineArgs(**ours | dict(options))
    # On a CPU, vLLM seeds the global generators and replaces torch.set_num_threads.
    rng, set_num_threads = torch.get_rng_state(), torch.set_num_threads
    multiprocessing = {k: v for k, v in os.environ.items() if k == "VLLM_ENABLE_V1_MULTIPROCESSING"}
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the worker too runs in this process, so it can take tensors
    try:
        vllm_config = arguments.create_engine_config(UsageContext.LLM_CLASS)
        if device.index is not None:  # or it would take the first GPU; its executor reads the index here
            vllm_config.device_config.device = device
        return LLMEngine(
            vllm_config=vllm_config,
            executor_class=Executor.get_class(vllm_config),
            log_stats=False,
            multiprocess_mode=False,
        )
    except (ValueError, NotImplementedError, torch.OutOfMemoryError) as error:
        raise ConfigError(
            f"vLLM does not start: {' '.join(str(error).split())[:500]}; if the trainer lacks memory, lower "
            "--gpu-memory-utilization or give --offload-optimizer; if the cache is too small, lower --max-context"
        ) from error
    finally:
        os.environ.pop("VLLM_ENABLE_V1_MULTIPROCESSING")
        os.environ |= multiprocessing
        torch.set_rng_state(rng)
        torch.set_num_threads = set_num_threads
