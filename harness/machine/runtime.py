"""The device, the weight type and the threads of a run."""

import ctypes
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal, cast

import torch
from transformers.utils import logging

from eh_gym.errors import ConfigError

_SMALL = 50_000_000  # parameters


def pick_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        return name  # not tried with a tensor, which would open a context on GPU 0 in every rank
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]  # CUDA's have several lines of advice
        raise ConfigError(f"device {name!r} is not available here ({reason}); use --device cpu or auto") from error
    return name


def visible_gpus() -> list[str]:
    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",")[:count] if names and count else [str(i) for i in range(count)]


def compiles(setting: str, device: str, *, sampled: bool) -> bool:
    """Returns whether to compile the policy's layers; `setting` is "auto", "on" or "off".

    "auto" compiles on GPUs, where torch needs Triton and a C compiler; on a CPU the update would be slower. It does not
    compile layers that are also `sampled` with, because their shapes then change with every token.
    """
    if setting != "auto":
        return setting == "on"
    able = find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))
    return torch.device(device).type == "cuda" and not sampled and able


def choose_dtype(name: str, device: str) -> Literal["float32", "bfloat16"]:
    """Returns the type that `name` stands for. "auto" is bfloat16, or float32 on a CPU without units for bfloat16."""
    if name != "auto":
        return cast(Literal["float32", "bfloat16"], name)
    return "bfloat16" if _computes_bfloat16(device) else "float32"


def pick_dtype(name: str, device: str) -> torch.dtype:
    """Returns the torch type of weights, by a name for `choose_dtype`. Warns if a CPU is slow with bfloat16."""
    name = choose_dtype(name, device)
    if name == "bfloat16" and not _computes_bfloat16(device):
        warnings.warn(
            "this CPU has no units for bfloat16, and may take ten times as long with it as with float32; give --dtype "
            "float32",
            RuntimeWarning,
            stacklevel=2,
        )
    return getattr(torch, name)  # type: ignore[no-any-return]


def _computes_bfloat16(device: str) -> bool:
    """Whether the device has units for bfloat16 that torch uses: every GPU, and CPUs with avx512_bf16 or amx_bf16.

    It is not measured, because the result, and with it the numbers of a run, would depend on the load of the machine.
    """
    if torch.device(device).type != "cpu":
        return True
    capabilities = torch.cpu.get_capabilities()
    return torch.backends.mkldnn.is_available() and any(
        supported for name, supported in capabilities.items() if "bf16" in name
    )


def set_threads(threads: int | None, parameters: int) -> None:
    """Sets the number of torch's threads for a model with this many parameters.

    0 leaves torch's default. None takes one thread for a small model, which is fastest, and torch's default for others.
    """
    if chosen := int(parameters < _SMALL) if threads is None else threads:
        torch.set_num_threads(chosen)


def return_memory(device: torch.device | str) -> None:
    """Gives the memory of freed tensors back to the system, if they were in a CPU's memory.

    glibc keeps freed memory that lies below memory in use: with SmolLM2, 6 GB after an update. The caches of the next
    rollout would come on top of it.
    """
    if torch.device(device).type == "cpu" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


@contextmanager
def library_settings() -> Iterator[None]:
    """Hides transformers' progress bars. Afterwards these and torch's number of threads are as before."""
    threads, bars = torch.get_num_threads(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if bars:
            logging.enable_progress_bar()
