"""The policy's weights on the way to vLLM's processes: as a file in memory, or over NCCL between GPUs.

vLLM's own weight-transfer API does the work. Left out: a policy that is spread over several ranks; rank 0 sends a copy of it.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from eh_gym.errors import MissingExtraError
from harness.lora import PlainWeights, plain_parameters
from harness.sampling.vllm_http import VLLMServer

__all__ = ["NCCLSender", "weights_file"]


@contextmanager
def weights_file(model: PreTrainedModel) -> Iterator[Path]:
    """A safetensors file with the policy's weights, in memory where the system has such a folder; gone afterwards."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="policy-", dir=memory if memory.is_dir() else None) as folder:
        path = Path(folder) / "policy.safetensors"
        save_file({name: p.contiguous() for name, p in plain_parameters(model)}, path)
        yield path


class NCCLSender:
    """Sends the policy's weights from this process's GPU to one server's GPUs, over a group of their own.

    Args:
        model: The policy.
        server: Started with ``--weight-transfer-config '{"backend": "nccl"}'``, on other GPUs than the policy's.
        device: The GPU; weights that lie elsewhere are brought there one by one.
    """

    def __init__(self, model: PreTrainedModel, server: VLLMServer, device: torch.device) -> None:
        try:
            from vllm.distributed.weight_transfer.base import ModuleSource
            from vllm.distributed.weight_transfer.nccl_engine import (
                NCCLTrainerInitInfo,
                NCCLTrainerWeightTransferEngine,
            )
        except ImportError as error:
            raise MissingExtraError(
                f"sending weights between GPUs needs vLLM beside the trainer too ({error}); "
                "run pip install -e '.[train,vllm]'"
            ) from error
        torch.cuda.set_device(device)
        with socket.socket(
            socket.AF_INET, socket.SOCK_DGRAM
        ) as probe:  # sends nothing; tells the address that leads there
            probe.connect((server.host, 9))
            address = probe.getsockname()[0]
        with socket.socket() as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        where = NCCLTrainerInitInfo(
            master_address=address, master_port=port, world_size=1 + server.world_size(), rank=0
        )
        self._engine: Any = NCCLTrainerWeightTransferEngine.trainer_init(
            where, client=server, source=ModuleSource(PlainWeights(model, device))
        )

    def send(self) -> None:
        """One update; blocks until the server has it."""
        self._engine.send_weights()
