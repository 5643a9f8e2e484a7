"""LoRA (arXiv 2106.09685) through peft: the model's own weights stay as they are, and a small matrix pair beside each is trained.

Every linear layer but the output layer gets adapters of one rank, scaled by 2 (alpha = 2 rank). The model keeps its class, so
that scoring, sampling with it, and the optimizer need not know. Whoever takes the weights elsewhere takes `plain_parameters`: the
adapters merged into what they adapt. Left out: handing adapters to vLLM as adapters. It loads them from files, by a new name for
each version, and slows every token down by them; a merged hand-over costs one pass over the weights an update.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eh_gym.errors import MissingExtraError

__all__ = ["PlainWeights", "add_lora", "has_lora", "plain_parameters", "without_lora"]

_ADAPTER = "default"  # peft's name for the only one


def add_lora(model: PreTrainedModel, rank: int, *, seed: int) -> None:
    """Freezes the model and adds adapters, which change nothing yet: one matrix of each pair is zero.

    Args:
        model: Changed in place.
        rank: Of the adapters, >= 1.
        seed: Draws the other matrix of each pair.

    Raises:
        MissingExtraError: peft is not installed.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingExtraError(
            f"--lora-rank needs peft ({error}); run pip install -e '.[train,lora]', or train all weights"
        ) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.add_adapter(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"), _ADAPTER)


def has_lora(model: PreTrainedModel) -> bool:
    """Whether the model has adapters."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


@contextmanager
def without_lora(model: PreTrainedModel) -> Iterator[None]:
    """Within, the model computes as it did before it got adapters; one that has none is left alone."""
    if not has_lora(model):
        yield
        return
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


@torch.no_grad()
def plain_parameters(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names of a model without adapters, with the adapters merged, each when it is asked for."""
    layers = dict(model.named_modules()) if has_lora(model) else {}
    for name, parameter in model.named_parameters():
        owner, adapted, part = name.partition(".base_layer.")
        if adapted and part == "weight":
            delta = layers[owner].get_delta_weight(_ADAPTER)
            yield f"{owner}.{part}", (parameter.float() + delta.float()).to(parameter.dtype)
        elif adapted:
            yield f"{owner}.{part}", parameter.detach()
        elif ".lora_" not in name:
            yield name, parameter.detach()


class PlainWeights:
    """A model to whom only asks for its parameters, which are the plain ones, on one device."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self._model, self._device = model, device

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """As a module's."""
        return ((name, p.to(self._device)) for name, p in plain_parameters(self._model))
