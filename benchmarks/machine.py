"""The processor's name, for the benchmarks that need no torch; those that do take it from `harness.run.runtime`."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """As the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
