"""Moves the policy's weights to vLLM servers: over NCCL between GPUs, else in a file. Adapters are merged into them.

If the policy is sharded over several ranks, rank 0 sends its whole copy (`harness.sampling.weights`).
"""

from __future__ import annotations

import itertools
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from eh_gym.errors import ConfigError, MissingExtraError
from harness.policy.lora import plain_parameters
from harness.sampling.vllm_http import VLLMServer

__all__ = [
    "NCCLSender",
    "PolicySource",
    "weights_file",
]


@contextmanager
def weights_file(model: PreTrainedModel) -> Iterator[Path]:
    """The policy's weights, adapters merged into them, as the only file of a temporary folder (``TMPDIR`` says where)."""
    with tempfile.TemporaryDirectory(prefix="policy-") as folder:
        path = Path(folder, "model.safetensors")
        save_file({name: p.cpu().contiguous() for name, p in plain_parameters(model)}, path)
        yield path


class NCCLSender:
    """Sends the policy's weights from this process's GPU to the GPUs of several servers at once, in one NCCL group.

    A server that dies during a transfer stops the transfer. If one dies or is started again between two transfers, a new sender
    is needed.

    Args:
        model: The policy.
        servers: Servers that were started with ``--weight-transfer-config '{"backend": "nccl"}'``, on other GPUs than the
            policy's.
        device: The GPU that sends; without a number, the present one. Weights that are elsewhere are copied there one by one.

    Attributes:
        servers: The servers of the group.

    Raises:
        MissingExtraError: vLLM is not installed in the trainer's environment.
        ConfigError: A server has no IPv4 address.
    """

    def __init__(self, model: PreTrainedModel, servers: Sequence[VLLMServer], device: torch.device) -> None:
        try:
            from vllm.distributed.weight_transfer.nccl_engine import (
                NCCLTrainerInitInfo,
                NCCLTrainerWeightTransferEngine,
            )
        except ImportError as error:
            raise MissingExtraError(
                f"sending weights between GPUs needs vLLM in the trainer's environment too ({error}); "
                "run pip install -e '.[train,vllm]'"
            ) from error
        self.servers = tuple(servers)
        if device == torch.device("cuda"):  # `set_device` wants a number
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        torch.cuda.set_device(device)
        addresses = [_own_address(server.host) for server in servers]
        # A server on this machine can reach every address, and one elsewhere not the loopback's.
        address = next((a for a in addresses if not a.startswith("127.")), addresses[0])
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        sizes = [server.world_size() for server in servers]
        where = NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=1 + sum(sizes), rank=0)
        self._engine: Any = NCCLTrainerWeightTransferEngine.trainer_init(
            where, client=_OneGroup(servers, sizes), source=PolicySource(model, device)
        )

    def send(self) -> None:
        """Sends one update; blocks until every server has it."""
        # vLLM packs the weights on streams of its own, which do not wait for this one. The optimizer's last step may still be
        # running here, and half of it would be sent.
        torch.cuda.synchronize(self._device)
        self._engine.send_weights()

    def close(self) -> None:
        """Leaves the group."""
        self._engine.shutdown()


def _own_address(host: str) -> str:
    """This machine's address on the route to a host. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            raise ConfigError(
                f"weights go to {host} over NCCL, and vLLM listens at an IPv4 address of this machine, but none reaches it "
                f"({error}); give --url an IPv4 address"
            ) from error
        return str(probe.getsockname()[0])


class _OneGroup:
    """Several servers as the one client that vLLM's sender talks to: every call goes to all of them at the same time."""

    def __init__(self, servers: Sequence[VLLMServer], sizes: Sequence[int]) -> None:
        self._servers = servers
        self._offsets = [1 + before for before in itertools.accumulate([0, *sizes[:-1]])]  # the sender has rank 0

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Lets the servers join. Each one's workers get the ranks after those of the server before."""
        infos = [{**init_info, "rank_offset": offset} for offset in self._offsets]
        self._each(lambda server, info: server.init_weight_transfer_engine(info), infos)

    def start_weight_update(self) -> None:
        """Tells the servers that weights will come."""
        self._each(lambda server, _: server.start_weight_update())

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Tells the servers' workers to receive weights."""
        self._each(lambda server, _: server.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Tells the servers that all weights have been sent."""
        self._each(lambda server, _: server.finish_weight_update(weight_version))

    def _each(self, call: Callable[[VLLMServer, Any], None], extras: Sequence[Any] | None = None) -> None:
        # They wait for each other inside NCCL, so the calls must run side by side. The threads are not waited for after an
        # error, because the servers that were left alone in the group never answer.
        threads = ThreadPoolExecutor(len(self._servers), thread_name_prefix="vllm-weights")
        calls = [
            threads.submit(call, server, extra)
            for server, extra in zip(self._servers, extras or [None] * len(self._servers), strict=True)
        ]
        threads.shutdown(wait=False)
        for done in as_completed(calls):
            done.result()


class PolicySource:
    """The policy's weights as vLLM's sender reads them (its ``WeightSource``): what will come, and then the tensors themselves.

    Args:
        model: The policy.
        device: The tensors arrive there. From pinned memory they are copied while the one before is packed.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self._model, self._device = model, device

    def metadata(self) -> list[SimpleNamespace]:
        """Each tensor's ``name``, ``dtype`` and ``shape``, in the order of iteration. Nothing is computed or moved."""
        weights = plain_parameters(self._model, merged=False)
        return [SimpleNamespace(name=name, dtype=p.dtype, shape=tuple(p.shape)) for name, p in weights]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the names and the tensors. Each is moved or merged once."""
        for name, p in plain_parameters(self._model, device=self._device):
            yield name, p.to(self._device, non_blocking=True)
