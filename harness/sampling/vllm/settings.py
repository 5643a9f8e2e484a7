"""What engine and servers have in common: the parameters of a request, and checks of the model and of a server."""

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from transformers import PreTrainedModel

from eh_gym.errors import ConfigError
from harness.sampling.vllm.http import ServerGone, ServerRefused, VLLMServer
from harness.settings.sampling import VLLMServerSampling
from harness.types.sampler import SampleRequest

WORKER_EXTENSION = "harness.sampling.vllm.worker.PolicyWeights"

# Makes vLLM compute logits in float32, as the trainer does. By default it rounds them to the type of the weights.
FLOAT32_LOGITS = {"head_dtype": "float32"}

_VERSIONS: tuple[str, ...] = "0.32.", "0.33."

# Mixtures whose experts vLLM 0.32 can't reload. It does not know their names in transformers; gpt-oss keeps the first
# weights.
_NOT_TAKEN = ("deepseek_v2", "deepseek_v3", "gpt_oss", "minimax_m2", "mixtral", "phimoe")


def check_model(model: PreTrainedModel) -> None:
    if model.config.model_type in _NOT_TAKEN:
        raise ConfigError(
            f"vLLM can't take over the weights of the experts of {model.config.model_type!r} after an update; use "
            "--sampler transformers, or another model"
        )


def sampling_parameters(request: SampleRequest) -> dict[str, Any]:
    """VLLM's parameters for a request. The whole distribution is sampled, and only the stop tokens end a sample."""
    return {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,
        "logprobs": 0,  # that of the sampled token alone
        "detokenize": False,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
    }


def check_servers(settings: VLLMServerSampling, device: str) -> None:
    for url in settings.urls:
        check_server(VLLMServer(url), over_nccl=torch.device(device).type == "cuda")


def check_server(server: VLLMServer, *, over_nccl: bool) -> tuple[int, int]:
    """Checks a server that gets weights `over_nccl` or from a file. Returns its longest context and `cache_tokens`."""
    try:
        answered = server.version()
        expected = _VERSIONS
        with suppress(PackageNotFoundError):  # between two versions, the second transfer over NCCL never ended
            local = version("vllm") if over_nccl else ""
            expected = tuple(v for v in _VERSIONS if local.startswith(v)) or _VERSIONS
        if not answered.startswith(expected):
            versions = " or ".join(f"{v}x" for v in expected)
            raise ConfigError(f"expected vLLM {versions} at {server.url}, got {answered}; see docs/vllm.md")
        settings = server.settings()
        model, parallel = settings["model_config"], settings["parallel_config"]
        overrides, transfer = model["hf_overrides"], settings["weight_transfer_config"] or {}
        logits = overrides.get("head_dtype") if isinstance(overrides, dict) else None
        chunked = settings["scheduler_config"]["enable_chunked_prefill"]
        flags = {  # each with whether the server has it
            "--logprobs-mode processed_logprobs": model["logprobs_mode"] == "processed_logprobs",
            f"--hf-overrides '{json.dumps(FLOAT32_LOGITS)}'": "float32" in (logits, model["dtype"].rpartition(".")[2]),
            "--no-enable-chunked-prefill": not chunked or settings["device_config"]["device"] != "cpu",
        }
        if over_nccl:
            flags['--weight-transfer-config \'{"backend": "nccl"}\''] = transfer.get("backend") == "nccl"
        else:
            flags[f"--worker-extension-cls {WORKER_EXTENSION}"] = parallel["worker_extension_cls"] == WORKER_EXTENSION
        longest, engines = int(model["max_model_len"]), int(parallel["data_parallel_size"])
        cache = cache_tokens(settings["cache_config"], engines)
    except ServerGone as error:
        raise ConfigError(
            f"no vLLM server answers: {error}; start one as docs/vllm.md says, give the --url of one that runs, or use "
            "--sampler transformers"
        ) from error
    except ServerRefused as error:
        raise ConfigError(f"{error}; start the server with VLLM_SERVER_DEV_MODE=1, see docs/vllm.md") from error
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{server.url} answers /server_info without vLLM's settings ({error!r}); see docs/vllm.md"
        ) from error
    for flag, given in flags.items():
        if not given:
            raise ConfigError(
                f"{server.url} would make the training wrong; start it with {flag}: docs/vllm.md says why"
            )
    return longest, cache


def cache_tokens(cache: Mapping[str, Any], engines: int = 1) -> int:
    """The tokens whose keys and values the caches of some engines hold, by vLLM's ``cache_config``; 0 if that is not
    known.

    A token takes a place in each group of layers. Gemma 3 has several groups, so its blocks hold fewer tokens than
    places. The configuration counts the blocks of all engines, but the tokens of one.
    """
    places = int(cache.get("num_gpu_blocks") or 0) * int(cache.get("block_size") or 0)
    return min(places, engines * int(cache.get("kv_cache_size_tokens") or places))
