"""Checks that vLLM can take over the model, and that a server is set up so that training on its samples is right.

docs/vllm.md has the commands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from eh_gym.errors import ConfigError
from harness.sampling.vllm_http import ServerGone, ServerRefused, VLLMServer

__all__ = ["FLOAT32_LOGITS", "WORKER_EXTENSION", "cache_tokens", "check_model", "check_server"]

WORKER_EXTENSION = "harness.sampling.vllm_worker.PolicyWeights"

# What lets vLLM compute logits in float32, as the trainer does; by default it rounds them to the type of the weights.
FLOAT32_LOGITS = {"head_dtype": "float32"}

_VERSION = "0.32."  # with another version on one side of a transfer over NCCL, the second update never ended

# Mixtures whose experts vLLM 0.32 does not take over: it does not know their names in transformers, or, with gpt-oss, its
# reload leaves the first weights in place.
_NOT_TAKEN = ("deepseek_v2", "deepseek_v3", "gpt_oss", "minimax_m2", "mixtral", "phimoe")


def check_model(model: PreTrainedModel) -> None:
    """Checks that vLLM can take over the model's weights.

    Raises:
        ConfigError: It can't.
    """
    if model.config.model_type in _NOT_TAKEN:
        raise ConfigError(
            f"vLLM can't take over the weights of the experts of {model.config.model_type!r} after an update; use --sampler "
            "transformers, or another model"
        )


def check_server(server: VLLMServer, *, over_nccl: bool) -> tuple[int, int]:
    """Checks the settings of a server, and returns its longest context and the tokens that its cache holds (0 if it is not said).

    Args:
        server: The server.
        over_nccl: Whether it receives the weights over NCCL, or else from a file.

    Raises:
        ConfigError: The server can't be reached, has another version of vLLM, or settings that would make training on its
            samples wrong.
    """
    try:
        if not (version := server.version()).startswith(_VERSION):
            raise ConfigError(f"expected vLLM {_VERSION}x at {server}, got {version}; see requirements/vllm.txt")
        settings = server.settings()
        model, parallel = settings["model_config"], settings["parallel_config"]
        overrides, transfer = model["hf_overrides"], settings["weight_transfer_config"] or {}
        logits = overrides.get("head_dtype") if isinstance(overrides, dict) else None
        on_cpu = settings["device_config"]["device"] == "cpu"
        needed = [  # whether the server has it, its flag, and what is otherwise wrong
            (
                model["logprobs_mode"] == "processed_logprobs",
                "--logprobs-mode processed_logprobs",
                "its log-probabilities are not those of the distribution that it samples from",
            ),
            (
                "float32" in (logits, model["dtype"].removeprefix("torch.")),
                f"--hf-overrides '{json.dumps(FLOAT32_LOGITS)}'",
                "it rounds its logits, which the trainer computes in float32",
            ),
            (
                transfer.get("backend") == "nccl" or not over_nccl,
                '--weight-transfer-config \'{"backend": "nccl"}\'',
                "it can't receive the weights from the policy's GPU",
            ),
            (
                parallel["worker_extension_cls"] == WORKER_EXTENSION or over_nccl,
                f"--worker-extension-cls {WORKER_EXTENSION}",
                "it can't load the weights of a policy without a GPU from a file",
            ),
            (
                not (on_cpu and settings["scheduler_config"]["enable_chunked_prefill"]),
                "--no-enable-chunked-prefill",
                "it crashes: on a CPU, vLLM can't process the prompt of a request with a seed in chunks",
            ),
        ]
        longest, engines = int(model["max_model_len"]), int(parallel["data_parallel_size"])
    except ServerGone as error:
        raise ConfigError(f"no vLLM server answers: {error}") from error
    except ServerRefused as error:
        raise ConfigError(f"{error}; start the server with VLLM_SERVER_DEV_MODE=1, see docs/vllm.md") from error
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{server} answers /server_info without vLLM's settings ({error!r}); see docs/vllm.md"
        ) from error
    for right, flag, wrong in needed:
        if not right:
            raise ConfigError(f"{server} has to be started with {flag}, see docs/vllm.md: without it {wrong}")
    return longest, cache_tokens(settings["cache_config"], engines)


def cache_tokens(cache: Mapping[str, Any], engines: int = 1) -> int:
    """The number of tokens whose keys and values some engines' caches hold; 0 if vLLM does not say.

    A token takes a place in each group of layers. Gemma 3 has several groups, so its blocks hold fewer tokens than places.

    Args:
        cache: vLLM's ``cache_config``. Its blocks are those of all engines, and its tokens those of one.
        engines: The number of engines.
    """
    places = int(cache.get("num_gpu_blocks") or 0) * int(cache.get("block_size") or 0)
    return min(places, engines * int(cache.get("kv_cache_size_tokens") or places))
