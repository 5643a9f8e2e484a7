"""Moves the policy's weights to vLLM servers: over NCCL between GPUs, else in a file. Adapters are merged into them.

If the policy is sharded over several ranks, rank 0 sends its whole copy (`harness.sampling.weights`).
"""

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from eh_gym.errors import MissingExtraError
from harness.model.lora import plain_parameters
from harness.sampling.vllm.http import CALL_S, VLLMServer


@contextmanager
def weights_file(model: PreTrainedModel) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="policy-") as folder:
        path = Path(folder, "model.safetensors")
        save_file({name: p.cpu().contiguous() for name, p in plain_parameters(model)}, path)
        yield path


class NCCLSender:
    """Sends the policy's weights from this process's GPU to the GPUs of several servers at once, in one NCCL group.

    It uses vLLM's sender and client. The group meets at this machine's address as vLLM finds it, or at
    ``VLLM_HOST_IP``. If a server dies during a transfer, the transfer fails. If one is lost or restarted between two
    transfers, make a new sender.

    `device` is the GPU that sends. Weights that are elsewhere are copied there one by one.
    """

    def __init__(self, model: PreTrainedModel, servers: Sequence[VLLMServer], device: torch.device) -> None:
        try:
            from vllm.distributed.weight_transfer import nccl_engine
            from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
            from vllm.utils.network_utils import get_ip, get_open_port
        except ImportError as error:
            raise MissingExtraError(
                f"sending weights between GPUs needs vLLM in the trainer's environment too ({error}); "
                "run pip install -e '.[train,vllm]'"
            ) from error
        self.servers = tuple(servers)
        self._device = device
        if device.index is not None:  # `--device auto` says "cuda", which is the present one
            torch.cuda.set_device(device)
        sizes = [server.world_size() for server in servers]
        clients = [HTTPVLLMWeightSyncClient(server.url, timeout=CALL_S) for server in servers]
        self._engine: Any = nccl_engine.NCCLTrainerWeightTransferEngine.trainer_init(
            nccl_engine.NCCLTrainerInitInfo(get_ip(), get_open_port(), world_size=1 + sum(sizes), rank=0),
            client=_OneGroup(clients, sizes),
            source=PolicySource(model, device),
        )

    def send(self) -> None:
        """Sends one update; blocks until every server has it."""
        # vLLM packs the weights on streams of its own, which do not wait for the optimizer's last step on this one.
        torch.cuda.synchronize(self._device)
        self._engine.send_weights()

    def close(self) -> None:
        self._engine.shutdown()


class _OneGroup:
    """Several servers' clients as the one client that vLLM's sender talks to: every call goes to all of them at once.

    The sender has rank 0. The ranks of each server's workers follow those of the server before.
    """

    def __init__(self, clients: Sequence[Any], sizes: Sequence[int]) -> None:
        self._clients = clients
        self._offsets = itertools.accumulate([1, *sizes[:-1]])

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._each("init_weight_transfer_engine", [{**init_info, "rank_offset": offset} for offset in self._offsets])

    def start_weight_update(self) -> None:
        self._each("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._each("update_weights", [update_info] * len(self._clients))

    def finish_weight_update(self) -> None:
        self._each("finish_weight_update")

    def _each(self, call: str, *arguments: Sequence[Any]) -> None:
        # The servers wait for each other inside NCCL, so the calls must run side by side. After an error, nothing waits
        # for the threads, because the other servers never answer.
        threads = ThreadPoolExecutor(len(self._clients), thread_name_prefix="vllm-weights")
        calls = [
            threads.submit(getattr(client, call), *own) for client, *own in zip(self._clients, *arguments, strict=True)
        ]
        threads.shutdown(wait=False)
        for done in as_completed(calls):
            done.result()


class _Declared(list[SimpleNamespace]):
    """What vLLM 0.33 reads, and 0.32 calls."""

    def __call__(self) -> "_Declared":
        return self


class PolicySource:
    """The policy's weights as vLLM's sender reads them (its ``WeightSource``): first their shapes, then the tensors.

    The tensors arrive on `device`. From pinned memory, each is copied while the one before is packed.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self._model, self._device = model, device

    @cached_property
    def metadata(self) -> _Declared:
        weights = plain_parameters(self._model, merged=False)
        return _Declared(SimpleNamespace(name=n, dtype=p.dtype, shape=tuple(p.shape), owners=None) for n, p in weights)

    def implements_iter_full(self) -> bool:
        return True

    def iter_full(self) -> Iterator[tuple[str, Tensor]]:
        for name, p in plain_parameters(self._model, device=self._device):
            yield name, p.to(self._device, non_blocking=True)

    __iter__ = iter_full
