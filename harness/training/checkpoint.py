"""Checkpoints that are complete or absent, so that a run can resume after a kill at any moment.

A checkpoint is a Hugging Face folder with the weights, the optimizer, the random state and the run's own state. A folder gets a
checkpoint's name after its last file is on disk, and loses the name before its first file is deleted.

``from_pretrained`` loads it, except with LoRA. Then it has the adapters alone; `harness.training.frozen` keeps the others.

Several ranks write their shards (torch.distributed.checkpoint) into a folder that all of them see. Any number of ranks can read
these shards. A run under torchrun cannot resume from a checkpoint that one process wrote without torchrun, nor the reverse.

`CheckpointWriter` writes while the training goes on. It copies the state to the host's memory first. A thread then fills the
folder as above, so a run that is killed meanwhile has the checkpoints before. torch's `async_save` does the same for shards
alone; here one thread writes all files of the folder, and names it.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from transformers import PreTrainedModel

from eh_gym.errors import StateError
from harness.policy.lora import has_lora
from harness.policy.ranks import Ranks
from harness.run.files import full_disk_named, sync
from harness.run.run_folder import SHARDS, checkpoint_name, checkpoints_in
from harness.training.frozen import load_trained, trained_weights
from harness.training.optimizer import master_weights

__all__ = [
    "CheckpointWriter",
    "load_training_state",
    "save_checkpoint",
    "training_state",
    "write_training_state",
]

_PART = ".part-"
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)  # strict would ask for the frozen weights

# What json, torch and safetensors raise if a file is missing, or from another model.
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


def save_checkpoint(
    folder: Path, update: int, *, write: Callable[[Path], None], keep: int, ranks: Ranks | None = None
) -> Path:
    """Writes ``update-000030``: fills a hidden folder, and renames it when all of its files are on disk.

    Args:
        folder: The folder of the checkpoints.
        update: The next update to be done.
        write: Fills the folder that it is given. It is called on every rank.
        keep: The number of checkpoints to keep, with the new one, >= 1.
        ranks: The processes that save together; None for this process alone.

    Returns:
        The new checkpoint.

    Raises:
        OSError: The disk is full. The errno is ENOSPC, whichever library noticed it.
    """
    assert keep >= 1, f"keep must be >= 1, got {keep}; a run must be resumable"
    ranks = ranks or Ranks()
    target, part = folder / checkpoint_name(update), folder / f"{_PART}{update:06d}"
    if ranks.first:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_PART}*"):  # from a save that was killed
            shutil.rmtree(leftover)
        part.mkdir()
    ranks.wait()
    try:
        before = "; those before are whole" if checkpoints_in(folder) else ""
        with full_disk_named(f"the disk is full, and {target.name} was not written{before}"):
            write(part)
            ranks.wait()
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    if ranks.first:
        _publish(part, target, keep)
    ranks.wait()
    return target


def _publish(part: Path, target: Path, keep: int) -> None:
    """Gives a complete checkpoint its name, and deletes the oldest ones."""
    for path in [*part.rglob("*"), part]:
        sync(path)
    # A run that was interrupted saves the update again with which it began. Deleting takes long, so it comes last.
    hidden = [_hide(target)] if target.exists() else []
    os.rename(part, target)
    sync(target.parent)
    for old in [*hidden, *map(_hide, checkpoints_in(target.parent)[:-keep])]:
        shutil.rmtree(old)


def training_state(
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """The tensors of a checkpoint, which are not copied: they change when the training goes on.

    Args:
        model: The policy.
        optimizer: The optimizer of the policy's parameters, or of copies of them.
        ranks: The processes over which the model is sharded. Then there is no random state, because every draw has its own
            seed.
    """
    ranks = ranks or Ranks()
    if ranks.sharded:
        weights, moments = _sharded_state(model, optimizer)
        return {"shards": {"model": weights, "optimizer": moments}}
    return {
        "model": trained_weights(model),
        "training": {
            "optimizer": optimizer.state_dict(),
            "masters": master_weights(model, optimizer),
            "rng": torch.get_rng_state(),
            "rng_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        },
    }


def _sharded_state(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The shards of the weights and of the optimizer, as they are.

    For an optimizer that has not stepped, torch makes the state by a step with a learning rate of 0. AdamW would count it: its
    first steps would be up to a quarter smaller.
    """
    fresh = not optimizer.state
    weights, moments = get_state_dict(model, optimizer, options=_TRAINED)
    if fresh:
        for state in optimizer.state.values():
            if "step" in state:
                state["step"].zero_()
    return weights, moments


def write_training_state(
    folder: Path,
    state: Mapping[str, Any],
    *,
    model: PreTrainedModel,
    extra: Mapping[str, Any],
    ranks: Ranks | None = None,
) -> None:
    """Writes a `training_state`, or a copy of it, and `extra` (JSON) into a folder. Of `model` only the settings are read."""
    ranks = ranks or Ranks()
    if ranks.first:
        (folder / "state.json").write_text(json.dumps(extra, indent=2))
    if "shards" in state:
        save_shards(state["shards"], checkpoint_id=folder / SHARDS, process_group=ranks.group)
        return
    if has_lora(model):
        save_file(state["model"], folder / "model.safetensors")
    else:  # one file, which is what `load_training_state` reads
        # The names of this model, not those of the hub, which `load_model` does not know.
        model.save_pretrained(
            folder, state_dict=dict(state["model"]), max_shard_size="1000GB", save_original_format=False
        )
    torch.save(state["training"], folder / "training.pt")


class CheckpointWriter:
    """Writes checkpoints while the training goes on, one at a time.

    Args:
        folder: The folder of the checkpoints.
        keep: The number of checkpoints to keep, >= 1.
        ranks: The processes that save together, with a group of their own (`Ranks.apart`), because they meet on the thread
            that writes.
    """

    def __init__(self, folder: Path, *, keep: int, ranks: Ranks) -> None:
        self._folder, self._keep, self._ranks = folder, keep, ranks
        # Pinned memory is filled fast, and slow to make, so it is kept for the next copy.
        self._pinned = DefaultStager(StagingOptions(True, False, False, True)) if torch.cuda.is_available() else None
        # A new thread's GPU is the first one. torch waits for it there while it writes shards, which takes half a gigabyte of it.
        here = functools.partial(torch.cuda.set_device, torch.cuda.current_device()) if self._pinned else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="eh-checkpoint", initializer=here)
        self._writing: Future[Path] | None = None

    def save(
        self, update: int, state: Mapping[str, Any], write: Callable[[Path, Mapping[str, Any], Ranks], None]
    ) -> None:
        """Copies `state` to the host's memory, and begins to write ``update-000030``. An earlier checkpoint is waited for.

        Args:
            update: The next update to be done.
            state: Dicts and lists of tensors. They may change when this returns.
            write: Fills the folder that it is given with the copy of the state. It is called on a thread of every rank, and
                may read nothing that the training changes.

        Raises:
            OSError: The earlier checkpoint could not be written. So do `check` and `wait`.
        """
        self.wait()
        copied = (self._pinned or DefaultStager(StagingOptions(False, False, False, False))).stage(dict(state))
        assert isinstance(copied, dict)
        self._writing = self._thread.submit(
            save_checkpoint,
            self._folder,
            update,
            write=lambda part: write(part, copied, self._ranks),
            keep=self._keep,
            ranks=self._ranks,
        )

    def check(self) -> None:
        """Raises the error of the thread, if there is one by now."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the last checkpoint has its name."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Waits for the thread, and forgets its error."""
        self._thread.shutdown(wait=True)


def load_training_state(
    folder: Path,
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Loads what `write_training_state` wrote into `model` and `optimizer`, and returns the extra state.

    Raises:
        StateError: A file is missing, or belongs to a model of another shape; a part may be loaded already. Or the checkpoint
            was written under torchrun and this process runs without it, or the reverse.
    """
    ranks = ranks or Ranks()
    if (folder / SHARDS).exists() != ranks.sharded:
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
            name = SHARDS
            weights, moments = _sharded_state(model, optimizer)
            load_shards({"model": weights, "optimizer": moments}, checkpoint_id=folder / name)
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=_TRAINED)
            return extra
        name = "model.safetensors"
        load_trained(folder / name, model)
        name = "training.pt"
        state = torch.load(folder / name, weights_only=True, map_location="cpu")
        optimizer.load_state_dict(state["optimizer"])
        for master, saved in zip(master_weights(model, optimizer), state["masters"], strict=True):
            master.copy_(saved)
        torch.set_rng_state(state["rng"])
        if state["rng_cuda"] and torch.cuda.is_available():
            # The run may go on where there are fewer GPUs.
            torch.cuda.set_rng_state_all(state["rng_cuda"][: torch.cuda.device_count()])
    except _UNREADABLE as error:
        # Only the first sentence, because torch then advises to load untrusted pickles; and not the names of all layers.
        reason = " ".join(str(error).split()).split(". ")[0][:200] or type(error).__name__
        raise StateError(
            f"{name} of the checkpoint {folder} can't be loaded ({reason}); the model or config.json is not that of the run: "
            "restore it"
        ) from error
    return extra


def _hide(checkpoint: Path) -> Path:
    """Renames a checkpoint to be deleted: a kill during the deletion must not leave half of it under its name."""
    hidden = checkpoint.with_name(f"{_PART}{checkpoint.name}")
    os.rename(checkpoint, hidden)
    return hidden
