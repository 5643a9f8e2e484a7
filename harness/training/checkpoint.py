"""Checkpoints that are complete or absent, so that a run can resume after a kill at any moment.

A checkpoint has the run's own state in ``state.json``, and its tensors in the form of torch.distributed.checkpoint: the
float32 weight and AdamW's state of each trained parameter, by its name. Any number of processes can read it. There is
no random state, because every draw has its own seed.

A folder gets a checkpoint's name after its last file is on disk, and loses the name before its first file is deleted.
With LoRA the frozen weights are written once, beside the checkpoints.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from transformers import PreTrainedModel

from eh_gym.errors import StateError
from harness.machine.ranks import ALONE, Ranks
from harness.records.files import room_for, sync, whole_file
from harness.records.run_folder import checkpoint_name, checkpoints_in
from harness.update.optimizer import parameters_of

_PART = ".part-"
_TENSORS = "tensors"


def save_checkpoint(
    folder: Path, update: int, *, write: Callable[[Path], None], keep: int, ranks: Ranks = ALONE
) -> Path:
    """Writes ``update-000030`` for the next update to be done, and keeps the newest `keep` checkpoints. Returns the new
    one.

    `write` fills a hidden folder, on every rank.
    """
    assert keep >= 1, f"keep must be >= 1, got {keep}; a run must be resumable"
    target, part = folder / checkpoint_name(update), folder / f"{_PART}{update:06d}"
    if ranks.first:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_PART}*"):  # from a save that was killed
            shutil.rmtree(leftover)
        part.mkdir()
    ranks.wait()
    with room_for(target, half=part):
        write(part)
        ranks.wait()
        if ranks.first:
            _publish(part, target, keep)
    ranks.wait()
    return target


def _publish(part: Path, target: Path, keep: int) -> None:
    for path in [*part.rglob("*"), part]:
        sync(path)
    # An interrupted run may save the update with which it began again. Deleting comes last, because it takes long.
    hidden = [_hide(target)] if target.exists() else []
    os.rename(part, target)
    sync(target.parent)
    for old in [*hidden, *map(_hide, checkpoints_in(target.parent)[:-keep])]:
        shutil.rmtree(old)


def _hide(checkpoint: Path) -> Path:
    hidden = checkpoint.with_name(f"{_PART}{checkpoint.name}")
    os.rename(checkpoint, hidden)
    return hidden


def write_training_state(
    folder: Path,
    extra: Mapping[str, Any],
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks = ALONE,
) -> None:
    """Writes the tensors of a training, and `extra` (the run's own state, as JSON), into a folder. Every rank must call
    this.
    """
    if ranks.first:
        (folder / "state.json").write_text(json.dumps(extra, indent=2))
    tensors = _tensors(model, optimizer)
    with _one_process_may_save():
        save_tensors(tensors, checkpoint_id=folder / _TENSORS, process_group=ranks.group, no_dist=not ranks.sharded)


def load_training_state(
    folder: Path,
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Loads what `write_training_state` wrote into `model` and `optimizer`, and returns the extra state.

    Raises:
        StateError: A file is missing or damaged, or belongs to a model of another shape; a part may be loaded already.
    """
    name = "state.json"
    try:
        extra = dict(json.loads((folder / name).read_text()))
        name = f"{_TENSORS}/.metadata"
        FileSystemReader(folder / _TENSORS).read_metadata()  # torch itself logs two tracebacks if it can't
        name = _TENSORS
        tensors = _tensors(model, optimizer)
        with _one_process_may_save():
            load_tensors(tensors, checkpoint_id=folder / name, process_group=ranks.group, no_dist=not ranks.sharded)
    except (Exception, CheckpointException) as error:  # garbage makes pickle raise anything
        raise StateError(
            f"{name} of the checkpoint {folder} can't be loaded ({_reason(error)}); if a file is damaged, delete "
            f"{folder.name}: a run then resumes from the one before. Otherwise the model or config.json is not that of "
            "the run: restore it"
        ) from error
    with torch.no_grad():
        for parameter, master in zip(_trained(model).values(), parameters_of(optimizer), strict=True):
            if parameter is not master:
                parameter.copy_(master)
    return extra


def _reason(error: BaseException) -> str:
    if isinstance(error, CheckpointException):  # its text has a traceback of each rank
        error = next(iter(error.failures.values()))[0]
    return " ".join(f"{type(error).__name__}: {error}".split(". ")[0].split())[:200]


@contextmanager
def _one_process_may_save() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _tensors(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        name: {"weight": p.detach(), **optimizer.state[p]}
        for name, p in zip(_trained(model), parameters_of(optimizer), strict=True)
    }


def _trained(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def keep_frozen(path: Path, model: PreTrainedModel) -> None:
    with whole_file(path) as part:
        save_file(_frozen(model), part)


@torch.no_grad()
def load_frozen(path: Path, model: PreTrainedModel) -> None:
    try:
        weights, wanted = load_file(path), _frozen(model)
        if weights.keys() != wanted.keys():
            raise ValueError(f"missing key or unexpected key: {min(weights.keys() ^ wanted.keys())}")
        for name, weight in wanted.items():
            weight.copy_(weights[name])
    except Exception as error:
        raise StateError(
            f"{path}, the run's frozen weights, can't be loaded ({_reason(error)}); restore the file"
        ) from error


def _frozen(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
