"""LoRA (arXiv 2106.09685) through peft: the model's own weights stay as they are, and a small matrix pair beside each is trained.

Every linear layer but the output layer gets adapters of one rank, scaled by 2 (alpha = 2 rank). The model keeps its class, so
that scoring, sampling with it, and the optimizer need not know. Whoever takes the weights elsewhere takes `plain_parameters`: the
adapters merged into what they adapt; or `frozen_parameters` once and `adapters` after every update. Left out: adapters on some
of the layers alone, or of unequal ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eh_gym.errors import MissingExtraError

__all__ = [
    "PlainWeights",
    "adapters",
    "add_lora",
    "frozen_parameters",
    "has_lora",
    "lora_rank",
    "plain_parameters",
    "without_lora",
]

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


def lora_rank(model: PreTrainedModel) -> int:
    """The adapters' rank; 0 for a model that has none."""
    config: Any = model.peft_config[_ADAPTER] if has_lora(model) else None
    return int(config.r) if config else 0


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


def plain_parameters(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names of a model without adapters, with the adapters merged, each when it is asked for."""
    return _own_parameters(model, merged=True)


def frozen_parameters(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names of a model without adapters, as they are beside the adapters."""
    return _own_parameters(model, merged=False)


@torch.no_grad()
def _own_parameters(model: PreTrainedModel, *, merged: bool) -> Iterator[tuple[str, Tensor]]:
    layers = dict(model.named_modules()) if has_lora(model) else {}
    for name, parameter in model.named_parameters():
        owner, adapted, part = name.partition(".base_layer.")
        if adapted and part == "weight" and merged:
            delta = layers[owner].get_delta_weight(_ADAPTER)
            yield f"{owner}.{part}", (parameter.float() + delta.float()).to(parameter.dtype)
        elif adapted:
            yield f"{owner}.{part}", parameter.detach()
        elif ".lora_" not in name:
            yield name, parameter.detach()


def adapters(model: PreTrainedModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The adapters alone, as a folder of peft's has them: what ``adapter_config.json`` must say, and the matrices by name."""
    from peft import get_peft_model_state_dict

    config: Any = model.peft_config[_ADAPTER]
    settings = {"peft_type": "LORA", "r": config.r, "lora_alpha": config.lora_alpha, "target_modules": "all-linear"}
    found = get_peft_model_state_dict(model, adapter_name=_ADAPTER, save_embedding_layers=False)
    return settings, {f"base_model.model.{name}": matrix.detach().contiguous() for name, matrix in found.items()}


class PlainWeights:
    """A model to whom only asks for its parameters: the plain ones, or the frozen ones, on one device."""

    def __init__(self, model: PreTrainedModel, device: torch.device, *, merged: bool) -> None:
        self._model, self._device, self._merged = model, device, merged

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """As a module's."""
        return ((name, p.to(self._device)) for name, p in _own_parameters(self._model, merged=self._merged))
