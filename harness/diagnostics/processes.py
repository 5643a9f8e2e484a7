"""Carries out each check in a process of its own.

So a crash, a hang or an engine that keeps its memory ends one check and no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from multiprocessing.process import BaseProcess
from pathlib import Path

from harness.diagnostics.checks import CHECKS, Check
from harness.diagnostics.lab import Lab
from harness.diagnostics.verdict import Measurement, Result, verdict

__all__ = ["carry_out", "end_group"]

_LOG_LINES = 60  # of a check that failed, in the report
_PATIENCE_S = 40.0  # torchrun gives its ranks 30 s
_POLL_S = 0.05


def carry_out(check: Check, lab: Lab) -> Result:
    """Runs a check in a process of its own, and kills all that it started if it takes too long."""
    if lacking := check.lacks(lab):
        return Result(check.name, "left out", why=lacking)
    began, path = time.monotonic(), lab.path(check.name)
    log, answer = path.with_suffix(".log"), path.with_suffix(".json")
    process = multiprocessing.get_context("spawn").Process(target=_alone, args=(check.name, lab, log, answer))
    process.start()
    try:
        process.join(lab.timeout_s)
        late = process.is_alive()
    finally:
        end_group(process)  # servers and ranks that it left behind too
    seconds = time.monotonic() - began
    if late or not answer.exists():
        end = f"did not end within {lab.timeout_s:g} s" if late else f"ended with exit code {process.exitcode}"
        tail = log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log.exists() else []
        return Result(check.name, "wrong", seconds, why="\n".join([*tail, f"the check {end}"]))
    return verdict(check.name, [Measurement(**one) for one in json.loads(answer.read_text())], seconds)


def _alone(name: str, lab: Lab, log: Path, answer: Path) -> None:
    """Runs a check in this process. All that it and its children print goes into the log."""
    os.setsid()
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        measurements = CHECKS[name].measure(lab)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    part = answer.with_suffix(".part")
    part.write_text(json.dumps([dataclasses.asdict(one) for one in measurements]))
    part.rename(answer)


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
