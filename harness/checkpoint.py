"""Checkpoints that are there whole or not at all, so that a run killed at any moment resumes.

A checkpoint is a Hugging Face folder (``from_pretrained`` loads it; not with LoRA, whose adapters lie apart) with the optimizer,
the random state and the run's own state beside the weights. A folder gets the name of a checkpoint after its last file is on
disk, and loses it before its first file goes. Left out: several devices.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from transformers import PreTrainedModel

from eh_gym.errors import StateError
from harness.lora import has_lora
from harness.optimizer import master_weights

__all__ = ["latest_checkpoint", "load_training_state", "save_checkpoint", "save_training_state", "write_whole"]

_NAME = re.compile(r"update-(\d{6,})")
_PART = ".part-"
_SAMPLED = "sampled.safetensors"

# What json, torch and safetensors raise at files that are missing, empty, cut, overwritten or another model's.
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    RuntimeError,
    pickle.UnpicklingError,
    SafetensorError,
)


def save_checkpoint(folder: Path, update: int, *, write: Callable[[Path], None], keep: int) -> Path:
    """Writes ``update-000030`` through a hidden folder that is renamed when all of it is on disk.

    Args:
        folder: Where the checkpoints are.
        update: The next update to be done.
        write: Fills the folder it is given.
        keep: How many checkpoints stay, the new one included, >= 1.

    Returns:
        The new checkpoint.
    """
    assert keep >= 1, f"keep must be >= 1, got {keep}; a run must be resumable"
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{_PART}*"):  # of a save that was killed
        shutil.rmtree(leftover)
    target, part = folder / f"update-{update:06d}", folder / f"{_PART}{update:06d}"
    part.mkdir()
    write(part)
    for path in [*part.rglob("*"), part]:
        _sync(path)
    if target.exists():  # the same update, saved by a run that was then resumed from an earlier one
        _remove(target)
    os.rename(part, target)
    _sync(folder)
    for old in _checkpoints(folder)[:-keep]:
        _remove(old)
    return target


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def save_training_state(
    folder: Path,
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Any],
    sampled: PreTrainedModel | None = None,
) -> None:
    """Writes the weights, the optimizer, torch's random state and `extra` (JSON) into a folder.

    Args:
        folder: Where to.
        model: The policy.
        optimizer: Over its parameters, or copies of them.
        extra: The run's own state.
        sampled: The sampler's own copy of the policy, with the weights that the next episodes are sampled with.
    """
    if sampled is not None:
        save_model(sampled, str(folder / _SAMPLED))
    if has_lora(model):
        save_model(model, str(folder / "model.safetensors"))
    else:
        model.save_pretrained(folder, max_shard_size="1000GB")  # one file, which is what `load_training_state` reads
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    state = {
        "optimizer": optimizer.state_dict(),
        "masters": master_weights(model, optimizer),
        "rng": torch.get_rng_state(),
        "rng_cuda": cuda,
    }
    torch.save(state, folder / "training.pt")
    (folder / "state.json").write_text(json.dumps(extra, indent=2))


def load_training_state(
    folder: Path,
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    sampled: PreTrainedModel | None = None,
) -> dict[str, Any]:
    """Loads what `save_training_state` wrote into `model`, `optimizer` and `sampled`, and returns the extra state.

    Raises:
        StateError: A file is missing or damaged, or belongs to a model of another shape. Then a part may be loaded already.
    """
    name = "state.json"
    try:
        extra = dict(json.loads((folder / name).read_text()))
        name = "model.safetensors"
        load_model(model, folder / name)
        if sampled is not None:
            name = _SAMPLED
            load_model(sampled, folder / name)
        name = "training.pt"
        state = torch.load(folder / name, weights_only=True, map_location="cpu")
        optimizer.load_state_dict(state["optimizer"])
        for master, saved in zip(master_weights(model, optimizer), state["masters"], strict=True):
            master.copy_(saved)
        torch.set_rng_state(state["rng"])
        if state["rng_cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["rng_cuda"])
    except _UNREADABLE as error:
        # The first sentence alone: torch goes on to advise loading untrusted pickles.
        reason = " ".join(str(error).split()).split(". ")[0] or type(error).__name__
        raise StateError(
            f"{name} of the checkpoint {folder} can't be loaded ({reason}); delete {folder.name} to resume from the one before"
        ) from error
    return extra


def write_whole(path: Path, text: str) -> None:
    """Writes a small file that a kill at any moment leaves as it was before, or whole."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _checkpoints(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=lambda p: int(p.name[7:]))


def _remove(checkpoint: Path) -> None:
    """Takes its name first: a kill while its files go must not leave half of it under that name."""
    hidden = checkpoint.with_name(f"{_PART}{checkpoint.name}")
    os.rename(checkpoint, hidden)
    shutil.rmtree(hidden)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
