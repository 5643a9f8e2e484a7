"""Checkpoints that are there whole or not at all, so that a run killed at any moment resumes.

A checkpoint is a Hugging Face folder (``from_pretrained`` loads it; not with LoRA, whose adapters lie apart) with the optimizer,
the random state and the run's own state beside the weights. A folder gets the name of a checkpoint after its last file is on
disk, and loses it before its first file goes. Several ranks write their shards side by side (torch.distributed.checkpoint), into
a folder that all of them see, and any number of ranks can read them. Left out: going on with torchrun from a checkpoint of one
process without it, or the other way.
"""

from __future__ import annotations

import errno
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
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from transformers import PreTrainedModel

from eh_gym.errors import StateError
from harness.policy.lora import has_lora
from harness.policy.ranks import Ranks
from harness.run.files import sync
from harness.run.run_folder import checkpoint_name, checkpoints_in
from harness.training.optimizer import master_weights

__all__ = ["load_training_state", "save_checkpoint", "save_training_state"]

_PART = ".part-"
_SAMPLED = "sampled.safetensors"
_SHARDS = "shards"

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
    CheckpointException,
)


# A full disk, as the system and safetensors name it; the last two are torch's, which says nothing else.
_FULL = re.compile(r"no space left|quota exceeded|file too large|unexpected pos|failed writing file", re.IGNORECASE)


def save_checkpoint(
    folder: Path, update: int, *, write: Callable[[Path], None], keep: int, ranks: Ranks | None = None
) -> Path:
    """Writes ``update-000030`` through a hidden folder that is renamed when all of it is on disk.

    Args:
        folder: Where the checkpoints are.
        update: The next update to be done.
        write: Fills the folder it is given; called on every rank.
        keep: How many checkpoints stay, the new one included, >= 1.
        ranks: Who saves together; None for this process alone.

    Returns:
        The new checkpoint.

    Raises:
        OSError: With errno ENOSPC, whichever library met it: there is no room for it.
    """
    assert keep >= 1, f"keep must be >= 1, got {keep}; a run must be resumable"
    ranks = ranks or Ranks()
    target, part = folder / checkpoint_name(update), folder / f"{_PART}{update:06d}"
    if ranks.first:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_PART}*"):  # of a save that was killed
            shutil.rmtree(leftover)
        part.mkdir()
    ranks.wait()
    try:
        write(part)
    except (OSError, RuntimeError, SafetensorError) as error:
        if not _FULL.search(str(error)):
            raise
        shutil.rmtree(part, ignore_errors=True)
        raise OSError(
            errno.ENOSPC, f"the disk is full, and {target.name} was not written; those before are whole"
        ) from error
    ranks.wait()
    if ranks.first:
        _publish(part, target, keep)
    ranks.wait()
    return target


def _publish(part: Path, target: Path, keep: int) -> None:
    """Gives a whole checkpoint its name, and lets the oldest go."""
    for path in [*part.rglob("*"), part]:
        sync(path)
    if target.exists():  # the same update, saved by a run that was then resumed from an earlier one
        _remove(target)
    os.rename(part, target)
    sync(target.parent)
    for old in checkpoints_in(target.parent)[:-keep]:
        _remove(old)


def save_training_state(
    folder: Path,
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Any],
    sampled: PreTrainedModel | None = None,
    ranks: Ranks | None = None,
) -> None:
    """Writes the weights, the optimizer, torch's random state and `extra` (JSON) into a folder.

    Args:
        folder: Where to.
        model: The policy.
        optimizer: Over its parameters, or copies of them.
        extra: The run's own state.
        sampled: The sampler's own copy of the policy, with the weights that the next episodes are sampled with.
        ranks: Over which the model is sharded; then no random state is written, since every draw has a seed of its own.
    """
    ranks = ranks or Ranks()
    if ranks.first:
        (folder / "state.json").write_text(json.dumps(extra, indent=2))
    if ranks.sharded:
        weights, moments = get_state_dict(model, optimizer)
        save_shards({"model": weights, "optimizer": moments}, checkpoint_id=folder / _SHARDS)
        if sampled is not None and ranks.first:
            save_model(sampled, str(folder / _SAMPLED))
        return
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


def load_training_state(
    folder: Path,
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    sampled: PreTrainedModel | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Loads what `save_training_state` wrote into `model`, `optimizer` and `sampled`, and returns the extra state.

    Raises:
        StateError: A file is missing or damaged, or belongs to a model of another shape. Then a part may be loaded already. Or it
            was written under torchrun and this process is not, or the other way.
    """
    ranks = ranks or Ranks()
    if (folder / _SHARDS).exists() != ranks.sharded:
        raise StateError(
            f"the checkpoint {folder} was written by "
            + (
                "one process without torchrun; resume it without"
                if ranks.sharded
                else "torchrun; resume it with torchrun --nproc-per-node N -m harness.grpo --resume RUN_DIR, any N"
            )
        )
    name = "state.json"
    try:
        extra = dict(json.loads((folder / name).read_text()))
        if ranks.sharded:
            name = _SHARDS
            weights, moments = get_state_dict(model, optimizer)
            load_shards({"model": weights, "optimizer": moments}, checkpoint_id=folder / name)
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        else:
            name = "model.safetensors"
            load_model(model, folder / name)
        if sampled is not None and sampled.device.type != "meta":  # a rank whose servers rank 0 sends the weights
            name = _SAMPLED
            load_model(sampled, folder / name)
        if ranks.sharded:
            return extra
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


def _remove(checkpoint: Path) -> None:
    """Takes its name first: a kill while its files go must not leave half of it under that name."""
    hidden = checkpoint.with_name(f"{_PART}{checkpoint.name}")
    os.rename(checkpoint, hidden)
    shutil.rmtree(hidden)
