"""The device, the weight type and the threads of a run."""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Literal, cast

import torch
from transformers.utils import logging

from eh_gym.errors import ConfigError

__all__ = ["choose_dtype", "compiles", "gpu_bytes", "library_settings", "pick_device", "pick_dtype", "set_threads"]

_SLOW = 3.0  # so many times as long as in float32


def pick_device(name: str) -> str:
    """Returns the torch device that `name` stands for; "auto" takes a GPU if there is one.

    Raises:
        ConfigError: This machine has no such device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        return name  # a tensor would open a context on GPU 0, and each rank uses another GPU
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} is not available here ({error}); use --device cpu or auto") from error
    return name


def gpu_bytes(device: str) -> int:
    """Returns the memory of a CUDA device; 0 for every other device."""
    if torch.device(device).type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(torch.device(device)).total_memory)


def compiles(setting: str, device: str, sampler: str) -> bool:
    """Returns whether the policy's layers are to be compiled; `setting` is "auto", "on" or "off".

    On a CPU it makes the update slower, so "auto" is for GPUs. There torch needs Triton and a C compiler. The transformers
    sampler runs the same layers, with shapes that change with every token.
    """
    if setting != "auto":
        return setting == "on"
    able = find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))
    return torch.device(device).type == "cuda" and sampler != "transformers" and able


def choose_dtype(name: str, device: str) -> Literal["float32", "bfloat16"]:
    """Returns the type that `name` stands for; "auto" is bfloat16, but float32 on a CPU that has no units for bfloat16."""
    if name != "auto":
        return cast(Literal["float32", "bfloat16"], name)
    return "float32" if torch.device(device).type == "cpu" and _bfloat16_cost() > _SLOW else "bfloat16"


def pick_dtype(name: str, device: str) -> torch.dtype:
    """Returns the torch type of weights; `name` is one for `choose_dtype`.

    It warns of bfloat16 on a CPU without units for it, which needs many times as long with it as with float32.
    """
    name = choose_dtype(name, device)
    if name == "bfloat16" and torch.device(device).type == "cpu" and (times := _bfloat16_cost()) > _SLOW:
        warnings.warn(
            f"this CPU has no units for bfloat16, and takes {times:.0f} times as long with it as with float32; "
            "give --dtype float32",
            RuntimeWarning,
            stacklevel=2,
        )
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


@cache
def _bfloat16_cost() -> float:
    """Returns how many times as long as in float32 this CPU takes for a matrix product and its gradients in bfloat16."""
    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for _ in range(3):
        for dtype in seconds:
            x, weights = (torch.ones(size, 256, dtype=dtype, requires_grad=True) for size in (64, 256))
            begun = time.perf_counter()
            torch.nn.functional.linear(x, weights).sum().backward()
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - begun)
    return seconds[torch.bfloat16] / seconds[torch.float32]


def set_threads(threads: int) -> None:
    """Sets the number of torch's threads; 0 leaves torch's default."""
    if threads:
        torch.set_num_threads(threads)


@contextmanager
def library_settings() -> Iterator[None]:
    """Leaves torch's number of threads and transformers' progress bars as they were: a notebook goes on after a run.

    Meanwhile transformers shows no bars, because a run has its own.
    """
    threads, bars = torch.get_num_threads(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if bars:
            logging.enable_progress_bar()
