"""Moves the policy's weights to vLLM's processes: in a file in memory, or over NCCL between GPUs. Adapters go as files or text.

Whole weights go through vLLM's own weight-transfer API. If the policy is sharded over several ranks, rank 0 sends its whole copy
(`harness.sampling.weights`).
"""

from __future__ import annotations

import base64
import json
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save, save_file
from transformers import PreTrainedModel

from eh_gym.errors import MissingExtraError
from harness.policy.lora import PlainWeights, adapters, frozen_parameters, plain_parameters
from harness.sampling.vllm_http import VLLMServer

__all__ = [
    "ADAPTERS",
    "ADAPTERS_ID",
    "WORKER_EXTENSION",
    "NCCLSender",
    "adapters_folder",
    "adapters_text",
    "memory_folder",
    "weights_file",
]

WORKER_EXTENSION = "harness.sampling.vllm_worker.PolicyWeights"
ADAPTERS = "policy-adapters"  # the adapters' name in vLLM; servers number them 1, because there are no others
ADAPTERS_ID = 1


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A temporary folder, in memory if the system has ``/dev/shm``. It is deleted afterwards."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="policy-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@contextmanager
def weights_file(model: PreTrainedModel, *, merged: bool = True) -> Iterator[Path]:
    """A temporary safetensors file with the policy's weights, with the adapters merged into them or left out."""
    with memory_folder() as folder:
        path = folder / "policy.safetensors"
        weights = plain_parameters(model) if merged else frozen_parameters(model)
        save_file({name: p.contiguous() for name, p in weights}, path)
        yield path


@contextmanager
def adapters_folder(model: PreTrainedModel) -> Iterator[Path]:
    """A temporary folder with the policy's adapters, in peft's format."""
    settings, matrices = adapters(model)
    with memory_folder() as folder:
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        save_file(matrices, folder / "adapter_model.safetensors")
        yield folder


def adapters_text(model: PreTrainedModel) -> dict[str, str]:
    """The files of `adapters_folder` as text, for a machine without a shared disk.

    Returns:
        ``settings`` as JSON, and ``matrices`` in base64.
    """
    settings, matrices = adapters(model)
    return {"settings": json.dumps(settings), "matrices": base64.b64encode(save(matrices)).decode()}


class NCCLSender:
    """Sends the policy's weights from this process's GPU to one server's GPUs, over their own NCCL group.

    Args:
        model: The policy.
        server: A server that was started with ``--weight-transfer-config '{"backend": "nccl"}'``, on other GPUs than the
            policy's.
        device: The GPU that sends. Weights that are elsewhere are copied there one by one.
        merged: Whether adapters are merged into the weights or left out.

    Raises:
        MissingExtraError: vLLM is not installed in the trainer's environment.
    """

    def __init__(self, model: PreTrainedModel, server: VLLMServer, device: torch.device, *, merged: bool) -> None:
        try:
            from vllm.distributed.weight_transfer.base import ModuleSource
            from vllm.distributed.weight_transfer.nccl_engine import (
                NCCLTrainerInitInfo,
                NCCLTrainerWeightTransferEngine,
            )
        except ImportError as error:
            raise MissingExtraError(
                f"sending weights between GPUs needs vLLM in the trainer's environment too ({error}); "
                "run pip install -e '.[train,vllm]'"
            ) from error
        torch.cuda.set_device(device)
        with socket.socket(
            socket.AF_INET, socket.SOCK_DGRAM
        ) as probe:  # sends nothing; finds this machine's address on the route to the server
            probe.connect((server.host, 9))
            address = probe.getsockname()[0]
        with socket.socket() as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        where = NCCLTrainerInitInfo(
            master_address=address, master_port=port, world_size=1 + server.world_size(), rank=0
        )
        self._engine: Any = NCCLTrainerWeightTransferEngine.trainer_init(
            where, client=server, source=ModuleSource(PlainWeights(model, device, merged=merged))
        )

    def send(self) -> None:
        """Sends one update; blocks until the server has it."""
        self._engine.send_weights()
