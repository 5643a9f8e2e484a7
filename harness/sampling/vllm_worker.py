"""What runs inside vLLM's worker processes: weights from a file, adapters as text, and a tied output layer kept in step.

vLLM loads this module where `worker_extension_cls` (``--worker-extension-cls``) names `PolicyWeights`. That also
registers the weight-transfer backend "file", for machines without GPUs; GPUs have vLLM's own "nccl", which needs
nothing of this. Left out: parts of a model; an update always brings every parameter.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from harness.sampling.transfer import ADAPTERS, ADAPTERS_ID, memory_folder

__all__ = ["FileTransfer", "PolicyWeights"]


@dataclass
class _Nothing(WeightTransferInitInfo):
    """Files need no connection."""


@dataclass
class _FileUpdate(WeightTransferUpdateInfo):
    """Where the weights are, on a disk that the trainer and the worker share."""

    path: str


class FileTransfer(WeightTransferEngine[_Nothing, _FileUpdate]):
    """Loads a safetensors file with a checkpoint's names."""

    init_info_cls = _Nothing
    update_info_cls = _FileUpdate

    def init_transfer_engine(self, init_info: _Nothing) -> None:
        """Nothing to connect to."""

    def start_weight_update(self) -> None:
        """Makes the layers ready to be loaded again."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: _FileUpdate) -> None:
        """Loads the file."""
        self.model.load_weights(load_file(update_info.path, device=str(self.device)).items())

    def finish_weight_update(self) -> None:
        """Has the layers prepare the weights for their kernels."""
        finalize_layerwise_reload(self.model, self.model_config)
        retie_head(self.model)

    def shutdown(self) -> None:
        """Nothing to close."""


if "file" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("file", FileTransfer)


class PolicyWeights:
    """Methods that vLLM adds to its worker, to be called over ``collective_rpc``."""

    model_runner: Any
    add_lora: Callable[[LoRARequest], bool]  # the worker's

    def retie_policy_head(self) -> None:
        """See `retie_head`."""
        retie_head(self.model_runner.get_model())

    def load_policy_adapters(self, settings: str, matrices: str) -> None:
        """Puts adapters in the place of those before, also for requests that run.

        Not over ``/v1/load_lora_adapter``: what vLLM 0.32 is told there to load in place, it loads from disk again at every step
        (vllm-project/vllm#41482).

        Args:
            settings: ``adapter_config.json``.
            matrices: ``adapter_model.safetensors`` in base64.
        """
        with memory_folder() as folder:
            (folder / "adapter_config.json").write_text(settings)
            (folder / "adapter_model.safetensors").write_bytes(base64.b64decode(matrices))
            self.add_lora(LoRARequest(ADAPTERS, ADAPTERS_ID, str(folder), load_inplace=True))


def retie_head(model: torch.nn.Module) -> None:
    """Packs a tied output layer's weights again, after the embedding that it shares them with was loaded.

    On a CPU vLLM's output layer computes with a packed copy. Loading a checkpoint with tied embeddings brings no weights
    for that layer, so its copy stays the old one: off by 0.10, 0.28, 0.40 nats after one, two, three updates (measured).
    Does nothing on GPUs, where there is no copy, and where the layer has weights of its own.
    """
    head: Any = getattr(model, "lm_head", None)
    embedding: Any = getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is None or embedding is None or head is embedding or not hasattr(head, "cpu_linear"):
        return
    if head.weight is embedding.weight or head.weight.data_ptr() == embedding.weight.data_ptr():
        head.quant_method.process_weights_after_loading(head)
