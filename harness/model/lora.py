"""LoRA (arXiv 2106.09685) through peft: the model's own weights are frozen, and a small pair of matrices per weight is
trained.

docs/training.md says which layers get adapters. The model keeps its class, so scoring, sampling and the optimizer work
as without adapters. To copy the weights elsewhere, read `plain_parameters`, which merges the adapters into them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eh_gym.errors import ConfigError
from harness.model.shards import whole

_ADAPTER = "default"  # peft's name for a single adapter


def add_lora(model: PreTrainedModel, rank: int, *, seed: int) -> None:
    """Freezes the model and adds adapters of a rank >= 1, in place.

    At first they change nothing, because one matrix of each pair is zero. The seed draws the other one.
    """
    from peft import LoraConfig
    from peft.tuners.lora import LoraLayer

    # By name, because peft's "all-linear" includes the experts of some mixtures. Subclasses of Linear are left out.
    head = model.get_output_embeddings()
    linear = [name for name, m in model.named_modules() if type(m) is torch.nn.Linear and m is not head]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model.add_adapter(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=linear), _ADAPTER)
        except ValueError as error:
            raise ConfigError(
                f"peft can't adapt {type(model).__name__} ({error}); leave --lora-rank out, which trains all weights"
            ) from error
    adapted: dict[str, Any] = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    if adapted.keys() != set(linear):
        # peft confuses a shared expert's gate_proj with that of every expert.
        raise ConfigError(
            f"--lora-rank adapts linear layers, and peft would adapt the experts of {type(model).__name__}, too; leave "
            "it out, which trains all weights"
        )
    for layer in adapted.values():
        layer.forward = MethodType(_forward, layer)


def _forward(layer: Any, x: Tensor) -> Tensor:
    """As peft's, W x + s B A x, but with the last product, the scale and the sum in one call. peft's need three passes
    over the output.
    """
    out: Tensor = layer.base_layer(x)
    if layer.disable_adapters:
        return out
    down, up = layer.lora_A[_ADAPTER](x), layer.lora_B[_ADAPTER].weight
    sums = torch.addmm(out.flatten(0, -2), down.flatten(0, -2), up.T, alpha=layer.scaling[_ADAPTER])
    return sums.view_as(out)


def has_lora(model: PreTrainedModel) -> bool:
    return bool(getattr(model, "_hf_peft_config_loaded", False))


@contextmanager
def without_lora(model: PreTrainedModel) -> Iterator[None]:
    if not has_lora(model):
        yield
        return
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


@torch.no_grad()
def plain_parameters(
    model: PreTrainedModel,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    *,
    merged: bool = True,
) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names of a model without adapters. Adapters are merged into a weight when it is read.

    The buffers that a checkpoint has, such as Gemma 4's scales of its layers, come last.

    Args:
        model: The model. If it is sharded, every rank must read all of the weights, in this order.
        dtype: The type of the weights; None for the model's type. Buffers keep their own type.
        device: The device that merges adapters; None for the model's device. One core merges a 7B model in about a
            minute.
        merged: Whether to merge the adapters. Otherwise the frozen weights come as they are.
    """
    layers = dict(model.named_modules()) if has_lora(model) else {}
    for name, parameter in model.named_parameters():
        owner, adapted, part = name.partition(".base_layer.")
        narrow = dtype or parameter.dtype
        if adapted and part == "weight" and merged:
            weight = whole(parameter).to(device, non_blocking=True).float()
            yield f"{owner}.{part}", (weight + _delta(layers[owner], device).float()).to(narrow)
        elif adapted:
            yield f"{owner}.{part}", whole(parameter.detach().to(narrow))
        elif ".lora_" not in name:
            yield name, whole(parameter.detach().to(narrow))
    saved = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


def _delta(layer: Any, device: torch.device | None) -> Tensor:
    """The product of a layer's adapters, which is added to its weight, in their own type."""
    down, up = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
    wide_down, wide_up = (whole(matrix).to(device, non_blocking=True).float() for matrix in (down, up))
    delta: Tensor = (wide_up @ wide_down * layer.scaling[_ADAPTER]).to(up.dtype)
    return delta
