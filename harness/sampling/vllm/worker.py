"""Loads the policy's weights in vLLM's worker processes, and packs weights for a CPU.

A server loads this module if ``--worker-extension-cls`` names `PolicyWeights`. Over NCCL it is not needed.
"""

from pathlib import Path
from typing import Any

import torch


class PolicyWeights:
    """What vLLM adds to its worker. ``/collective_rpc`` calls the method."""

    model_runner: Any
    reload_weights: Any

    def load_policy(self, file: str) -> None:
        """Loads every parameter from a safetensors file as of a checkpoint, which must be alone in its folder."""
        self.reload_weights(weights_path=str(Path(file).parent))
        pack_on_cpu(self.model_runner.get_model())


def pack_on_cpu(model: torch.nn.Module) -> None:
    """Packs the weights that vLLM 0.32 packs for a CPU's kernels only at the first load. On GPUs this does nothing.

    A tied output layer computes with a packed copy, which a reload does not renew: log-probabilities were off by 0.40
    nats after three updates (measured). The experts of a mixture would stay unpacked, in the wrong order for the
    kernel: off by 7 nats (measured).
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
