"""The processor's name, for the benchmarks that need no torch. Those that need torch take it from `harness.run.runtime`."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """Returns the processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
