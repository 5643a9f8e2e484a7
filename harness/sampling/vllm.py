"""Samples with a vLLM engine inside the trainer's process, on the trainer's own GPU (or CPU).

The engine starts with random weights and takes the policy's over from memory, then and after every update: no file is
written but the model's configuration and tokenizer. Between rollouts it sleeps and the GPU is the trainer's. With
`tensor_parallel` GPUs the engine's workers are processes of their own, and the weights go to them through a file in
memory; so do LoRA's adapters where they are handed over apart. Left out: GPUs that the trainer does not see;
`harness.sampling.vllm_server` is for those.
"""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from eh_gym.errors import ConfigError, MissingExtraError, SamplerError
from harness.policy.lora import adapters as adapters_of
from harness.policy.lora import frozen_parameters, lora_rank, plain_parameters
from harness.sampling.transfer import ADAPTERS, ADAPTERS_ID, WORKER_EXTENSION, adapters_folder, weights_file
from harness.settings.sampling import engine_rank
from harness.types.sampler import Sample, SampleRequest, check_request, spans

__all__ = ["VLLMSampler"]

_CPU_CACHE_BYTES = 512 << 20  # without a figure vLLM takes most of the machine's memory


@dataclass
class _Running:
    """One request on its way, and what came out so far."""

    request: SampleRequest
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class VLLMSampler:
    """A `Sampler` over an engine that holds its own copy of the policy's weights.

    Args:
        model: The policy. It is read at the start and by `weights_changed`.
        tokenizer: Its tokenizer; vLLM insists on one, tokens go in and out all the same.
        max_context: The most tokens of an episode; at most, and by default, the model's ``max_position_embeddings``.
        dtype: The engine's weights: "float32", "bfloat16"; by default as the policy's.
        quantization: One of vLLM's online methods, such as "fp8"; None for none.
        tensor_parallel: How many GPUs share the model.
        gpu_memory_utilization: The engine's share of the GPU's memory; what the trainer holds while it samples must fit
            beside it. On a CPU vLLM's cache gets 512 MiB, or what one episode needs.
        adapters: The model's LoRA adapters are handed over beside the weights that they adapt, which are not handed over again
            while the engine has them. Otherwise they are merged into them.

    Raises:
        MissingExtraError: vLLM is not installed.
        ConfigError: `max_context` exceeds the model's positions, or the adapters' rank what vLLM takes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_context: int | None = None,
        dtype: str | None = None,
        quantization: str | None = None,
        tensor_parallel: int = 1,
        gpu_memory_utilization: float = 0.5,
        adapters: bool = False,
    ) -> None:
        config = model.config.get_text_config()
        positions = int(config.max_position_embeddings)
        if max_context is not None and not 1 < max_context <= positions:
            raise ConfigError(f"max_context must be in 2..{positions} (the model's positions), got {max_context}")
        self._model = model
        self._vocab_size = int(config.vocab_size)
        self._max_context = max_context or positions
        self._version = 0
        self._numbers = itertools.count()
        self._running: dict[str, _Running] = {}
        self._names: dict[Hashable, str] = {}
        self._asleep = False
        self._lora_request: Any = None
        self._on_gpu = model.device.type == "cuda"
        self._own_process = tensor_parallel == 1
        options: dict[str, Any] = {"gpu_memory_utilization": gpu_memory_utilization, "enable_sleep_mode": True}
        if not self._on_gpu:
            # Compiling vLLM's own little functions takes half a minute of the first step, and gains nothing there.
            torch._dynamo.config.disable = True
            options = {
                "enforce_eager": True,
                "block_size": 32,
                "kv_cache_memory_bytes": self._cpu_cache_bytes(config),
                # After a part of a prompt vLLM turns back the request's generator, which a CPU's cannot do: it would crash.
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(4096, self._max_context),
            }
        self._adapters = adapters
        if adapters:
            layers = {name.split(".")[-3] for name in adapters_of(model)[1]}
            options |= {"enable_lora": True, "max_lora_rank": engine_rank(lora_rank(model))}
            options["lora_target_modules"] = sorted(
                layers
            )  # vLLM would hold and compute adapters of the output layer too
        with tempfile.TemporaryDirectory() as folder:
            named = copy.deepcopy(model.config)
            named.architectures = [type(model).__name__]
            named.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            self._engine = _start_engine(
                model=folder,
                dtype=dtype or str(model.dtype).removeprefix("torch."),
                quantization=quantization,
                max_model_len=self._max_context,
                tensor_parallel_size=tensor_parallel,
                **options,
            )
        self._take_over_weights()
        self._take_over_adapters()

    @property
    def max_context(self) -> int:
        """The most tokens, prompt and sample together, that one episode may hold."""
        return self._max_context

    @property
    def pending(self) -> int:
        """How many submitted requests have not come back yet."""
        return len(self._running)

    def submit(self, request: SampleRequest) -> None:
        """Queues one request; see `Sampler.submit`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        assert not self._asleep, "weights_changed() wakes the sampler"
        check_request(request, vocab_size=self._vocab_size, max_context=self._max_context)
        if request.session in self._names:
            raise ConfigError(f"session {request.session!r} already has a request; wait for it or use another session")
        parameters = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            stop_token_ids=sorted(request.stop_ids),
            ignore_eos=True,  # stop_ids alone say what ends a sample
            logprobs=0,  # of the sampled token alone
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        name = str(next(self._numbers))
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        self._engine.add_request(name, prompt, parameters, lora_request=self._lora_request)
        self._running[name] = _Running(request)
        self._names[request.session] = name

    def step(self) -> list[tuple[SampleRequest, Sample]]:
        """One step of the engine: a token for every running request, or a part of new prompts."""
        if not self._running:
            return []
        finished = []
        for output in self._engine.step():
            running = self._running.get(output.request_id)
            if running is None:  # its session was ended
                continue
            new = output.outputs[0]
            running.ids += new.token_ids
            running.logprobs += [at[token].logprob for at, token in zip(new.logprobs, new.token_ids, strict=True)]
            running.versions += [self._version] * len(new.token_ids)
            if output.finished:
                if new.finish_reason not in ("stop", "length"):
                    raise SamplerError(f"vLLM ended a request with {new.finish_reason!r}: {running.request}")
                finished.append(output.request_id)
        return [self._finish(name) for name in sorted(finished, key=int)]

    def end_session(self, session: Hashable) -> None:
        """Drops the session's request; what was computed for it stays until vLLM needs the room."""
        name = self._names.pop(session, None)
        if name is not None:
            del self._running[name]
            self._engine.abort_request([name])

    def sleep(self) -> None:
        """On a GPU, gives back the memory of weights and cache; see `Sampler.sleep`."""
        assert not self._running, "requests are pending"
        if self._on_gpu:
            self._engine.sleep(level=2)
            self._asleep = True

    def weights_changed(self) -> int:
        """Takes over the policy's weights and empties the prefix cache. Returns the new policy version."""
        if self._asleep:
            self._engine.wake_up(tags=["weights"])
        if self._asleep or not self._adapters:
            self._take_over_weights()
        self._take_over_adapters()
        if self._asleep:
            self._engine.wake_up(tags=["kv_cache"])
            self._asleep = False
        # Also of running requests, which then compute their keys and values anew: stale ones are off by 1.7 to 3.5 nats.
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise SamplerError("vLLM did not empty its prefix cache after a weight update")
        self._version += 1
        return self._version

    def _take_over_adapters(self) -> None:
        """In the place of those before, which running requests then go on with."""
        if not self._adapters:
            return
        from vllm.lora.request import LoRARequest

        with adapters_folder(self._model) as folder:
            self._engine.add_lora(LoRARequest(ADAPTERS, ADAPTERS_ID, str(folder), load_inplace=True))
        # Not the same: every step would load what a request says is to be loaded in place.
        self._lora_request = LoRARequest(ADAPTERS, ADAPTERS_ID, str(folder))

    def _take_over_weights(self) -> None:
        """All weights; without the adapters, if these come apart. vLLM then has no adapters."""
        call = self._engine.collective_rpc
        if self._own_process:
            weights = frozen_parameters if self._adapters else plain_parameters
            call("reload_weights", kwargs={"weights_iterator": weights(self._model)})
            call("retie_policy_head")
        else:
            with weights_file(self._model, merged=not self._adapters) as path:
                call("start_weight_update")
                call("update_weights", kwargs={"update_info": {"path": str(path)}})
                call("finish_weight_update")

    def _finish(self, name: str) -> tuple[SampleRequest, Sample]:
        done = self._running.pop(name)
        del self._names[done.request.session]
        reason = "stop" if done.ids[-1] in done.request.stop_ids else "length"
        return done.request, Sample(done.ids, done.logprobs, reason, done.versions[0], spans(done.versions))  # type: ignore[arg-type]

    def _cpu_cache_bytes(self, config: Any) -> int:
        """Room for one whole episode, in float32 with the padding of blocks, or the usual."""
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        episode = 2 * config.num_hidden_layers * heads * max(dim, 32) * 4 * (self._max_context + 64)
        return int(max(_CPU_CACHE_BYTES, 2 * episode))


def _start_engine(**options: Any) -> Any:
    """An engine in this process, with torch's settings left as they were."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vLLM is imported; it warns at each update
    try:
        from vllm import EngineArgs
        from vllm.config import WeightTransferConfig
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor
    except ImportError as error:
        raise MissingExtraError(
            f"vLLM is not installed here ({error}); on a GPU run pip install -e '.[train,vllm]', for a CPU see docs/vllm.md, "
            "or use --sampler transformers"
        ) from error
    arguments = EngineArgs(
        load_format="dummy",
        generation_config="vllm",  # nothing from the model's own
        logprobs_mode="processed_logprobs",  # of the distribution sampled: the default ignores the temperature
        worker_extension_cls=WORKER_EXTENSION,
        weight_transfer_config=WeightTransferConfig(backend="file"),
        disable_log_stats=True,
        seed=0,
        **options,
    )
    # On a CPU, vLLM seeds the global generators and replaces torch.set_num_threads.
    rng, set_num_threads = torch.get_rng_state(), torch.set_num_threads
    multiprocessing = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = (
        "0"  # also the worker is this process, so that tensors can be handed over
    )
    try:
        vllm_config = arguments.create_engine_config(UsageContext.LLM_CLASS)
        return LLMEngine(
            vllm_config=vllm_config,
            executor_class=Executor.get_class(vllm_config),
            log_stats=False,
            multiprocess_mode=False,
        )
    finally:
        if multiprocessing is None:
            del os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]
        else:
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = multiprocessing
        torch.set_rng_state(rng)
        torch.set_num_threads = set_num_threads
