"""The code in vLLM's worker processes. It loads weights from a file, and packs weights for a CPU.

vLLM loads this module if `worker_extension_cls` (``--worker-extension-cls``) names `PolicyWeights`. Loading it also registers
the weight-transfer backend "file", for machines without GPUs. GPUs use vLLM's own backend "nccl", which needs nothing from
this module. An update always brings every parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

__all__ = ["FileTransfer", "PolicyWeights"]


@dataclass
class _Nothing(WeightTransferInitInfo):
    """Files need no connection."""


@dataclass
class _FileUpdate(WeightTransferUpdateInfo):
    """The path of the weights, on a disk that the trainer and the worker share."""

    path: str


class FileTransfer(WeightTransferEngine[_Nothing, _FileUpdate]):
    """Loads a safetensors file that has the parameter names of a checkpoint."""

    init_info_cls = _Nothing
    update_info_cls = _FileUpdate

    def init_transfer_engine(self, init_info: _Nothing) -> None:
        """Does nothing: a file needs no connection."""

    def start_weight_update(self) -> None:
        """Prepares the layers for loading again."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: _FileUpdate) -> None:
        """Loads the file, one tensor at a time: the worker's own part of the model may fill most of its GPU."""
        with safe_open(update_info.path, framework="pt", device=str(self.device)) as weights:
            self.model.load_weights((name, weights.get_tensor(name)) for name in weights.keys())  # noqa: SIM118

    def finish_weight_update(self) -> None:
        """Lets the layers prepare the weights for their kernels."""
        finalize_layerwise_reload(self.model, self.model_config)
        pack_on_cpu(self.model)

    def shutdown(self) -> None:
        """Does nothing: there is nothing to close."""


if "file" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("file", FileTransfer)


class PolicyWeights:
    """Methods that vLLM adds to its worker. They are called through ``collective_rpc``."""

    model_runner: Any

    def pack_policy_on_cpu(self) -> None:
        """See `pack_on_cpu`."""
        pack_on_cpu(self.model_runner.get_model())


def pack_on_cpu(model: torch.nn.Module) -> None:
    """Packs the weights that vLLM 0.32 packs for a CPU's kernels at the first load alone. On GPUs this does nothing.

    A tied output layer computes with a packed copy. A checkpoint has no weights for that layer, so without this function the
    copy would stay the old one: log-probabilities were off by 0.10, 0.28 and 0.40 nats after one, two and three updates
    (measured). The experts of a mixture get the new weights, but unpacked: the kernel read them in the wrong order, and
    log-probabilities were off by 7 nats (measured).
    """
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        if kernel is not None and next(layer.parameters()).device.type == "cpu":
            kernel.fused_experts.process_weights_after_loading(layer)
    head: Any = getattr(model, "lm_head", None)
    embedding: Any = getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is None or embedding is None or head is embedding or not hasattr(head, "cpu_linear"):
        return
    if head.weight is embedding.weight or head.weight.data_ptr() == embedding.weight.data_ptr():
        head.quant_method.process_weights_after_loading(head)
