"""The weights that a run with adapters never changes, which it writes once. Its checkpoints have the adapters alone."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from eh_gym.errors import StateError
from harness.policy.lora import has_lora
from harness.run.files import full_disk_named, whole_file

__all__ = ["all_weights", "keep_frozen", "load_frozen", "load_part", "weights_of"]


def keep_frozen(path: Path, model: PreTrainedModel) -> None:
    """Writes the frozen weights of a model with adapters.

    Raises:
        OSError: The disk is full. The errno is ENOSPC, whichever library noticed it.
    """
    with full_disk_named(f"the disk is full, and {path.name} was not written"), whole_file(path) as part:
        save_file(weights_of(model)[1], part)


def load_frozen(path: Path, model: PreTrainedModel) -> None:
    """Loads what `keep_frozen` wrote.

    Raises:
        StateError: The file is missing or damaged, or belongs to another model.
    """
    try:
        load_part(model, path, set(weights_of(model)[1]))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StateError(f"{path}, the run's frozen weights, can't be loaded ({reason}); restore the file") from error


def load_part(model: PreTrainedModel, path: Path, names: set[str]) -> None:
    """Loads a part of the weights, which must have these names.

    Raises:
        ValueError: The file has other names.
    """
    weights = load_file(path)
    if weights.keys() != names:
        raise ValueError(f"missing key or unexpected key: {min(weights.keys() ^ names)}")
    model.load_state_dict(weights, strict=False)


def weights_of(model: PreTrainedModel) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights that a checkpoint has, and those that it leaves out: none without adapters."""
    weights = all_weights(model)
    if not has_lora(model):
        return weights, {}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    return (
        {name: w for name, w in weights.items() if name in trained},
        {name: w for name, w in weights.items() if name not in trained},
    )


def all_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights and buffers by name; of tied weights the first name alone."""
    once = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name in once}
