"""Ends a process and everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing.process import BaseProcess

__all__ = ["end_group"]

_PATIENCE_S = 40.0  # torchrun gives its ranks 30 s
_POLL_S = 0.05


def end_group(process: BaseProcess) -> None:
    """Ends a process that leads a group, and the group. Returns when the process has ended.

    torchrun starts each rank in a group of its own, so only torchrun can end them. It does so after SIGTERM. What is then left of
    the group is killed.
    """
    group = process.pid or 0
    with contextlib.suppress(ProcessLookupError):  # nothing is left
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            process.join(_POLL_S)
            os.killpg(group, 0)
            time.sleep(_POLL_S)
        os.killpg(group, signal.SIGKILL)
    process.kill()  # it may not lead a group yet
    process.join()
