"""The device, the type of the weights and the threads that a run computes with."""

from __future__ import annotations

import torch

from eh_gym.errors import ConfigError

__all__ = ["pick_device", "pick_dtype", "set_threads"]


def pick_device(name: str) -> str:
    """The torch device that `name` means; "auto" takes a GPU if there is one.

    Raises:
        ConfigError: There is no such device here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} is not to be had here ({error}); use --device cpu or auto") from error
    return name


def pick_dtype(name: str) -> torch.dtype:
    """The weights' type: "float32" or "bfloat16"."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def set_threads(threads: int) -> None:
    """Sets torch's threads; 0 leaves its default."""
    if threads:
        torch.set_num_threads(threads)
