"""The weights that a run with adapters never changes, which it writes once. Its checkpoints have the adapters alone."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor
from transformers import PreTrainedModel

from eh_gym.errors import StateError
from harness.policy.lora import has_lora
from harness.run.files import full_disk_named, whole_file

__all__ = ["keep_frozen", "load_frozen", "load_trained", "trained_weights"]


def keep_frozen(path: Path, model: PreTrainedModel) -> None:
    """Writes the frozen weights of a model with adapters.

    Raises:
        OSError: The disk is full. The errno is ENOSPC, whichever library noticed it.
    """
    with full_disk_named(f"the disk is full, and {path.name} was not written"), whole_file(path) as part:
        save_file(_frozen_weights(model), part)


def load_frozen(path: Path, model: PreTrainedModel) -> None:
    """Loads what `keep_frozen` wrote.

    Raises:
        StateError: The file is missing or damaged, or belongs to another model.
    """
    try:
        _load_part(path, model, set(_frozen_weights(model)))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StateError(f"{path}, the run's frozen weights, can't be loaded ({reason}); restore the file") from error


def load_trained(path: Path, model: PreTrainedModel) -> None:
    """Loads a file of `trained_weights`.

    Raises:
        ValueError: The file has other weights. Other errors of safetensors and torch come as they are.
    """
    if has_lora(model):
        _load_part(path, model, set(trained_weights(model)))
    else:
        load_model(model, path)


def trained_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """What a checkpoint has, by name: the adapters alone, or without adapters all weights and buffers."""
    weights = _weights(model)
    if not has_lora(model):
        return weights
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    return {name: weight for name, weight in weights.items() if name in trained}


def _frozen_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    trained = trained_weights(model)
    return {name: weight for name, weight in _weights(model).items() if name not in trained}


def _weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights and buffers by name; of tied weights the first name alone."""
    once = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name in once}


def _load_part(path: Path, model: PreTrainedModel, names: set[str]) -> None:
    weights = load_file(path)
    if weights.keys() != names:
        raise ValueError(f"missing key or unexpected key: {min(weights.keys() ^ names)}")
    model.load_state_dict(weights, strict=False)
