"""`python -m harness.gpu_check`: tries every path of the harness once on this machine, and says what is right, slow or wrong.

It needs at most 20 minutes on a GPU, and leaves a file to attach to a report. On a CPU it runs the checks that need no GPU.
docs/vllm.md explains the table.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console

from eh_gym.errors import ConfigError
from harness.settings.command_line import errors_in_one_line, parse
from harness.settings.ranges import Range, check_settings

__all__ = ["GPUCheck", "check", "main"]


@dataclass(frozen=True)
class GPUCheck:
    """Tries every path of the harness once on this machine, and says what is right, slow or wrong."""

    out: Path | None = None
    """The folder for the report, the logs and the runs. It must be empty. The default is runs/gpu-check, numbered if that is
    taken."""
    device: str = "auto"
    """The device: cuda or cpu. auto takes the GPUs if there are any."""
    only: tuple[str, ...] = ()
    """The names of the checks to run, in quotes. Empty runs all of them."""
    minutes: Annotated[float, Range(0)] = 20.0
    """The checks take so many minutes in all. One that is not done by then is stopped, and those after it are left out."""
    timeout_s: Annotated[float, Range(0, above=True)] = 300.0
    """A check that takes longer is killed, and counts as wrong."""


def check(wanted: GPUCheck, console: Console) -> bool:
    """Runs the checks, prints the table, and writes ``report.txt``. Returns whether nothing is wrong.

    Raises:
        ConfigError: There is no such check or device, or the folder can't be made or is not empty.
    """
    from harness.diagnostics.checks import CHECKS
    from harness.diagnostics.lab import Lab
    from harness.diagnostics.processes import carry_out
    from harness.diagnostics.verdict import Result, about, report, row
    from harness.run.files import make_folder
    from harness.run.run_folder import free_folder
    from harness.run.runtime import gpu_bytes, pick_device

    check_settings(wanted)
    unknown = [name for name in wanted.only if name not in CHECKS]
    if unknown:
        raise ConfigError(f"there is no check {unknown[0]!r}; the checks are {', '.join(map(repr, CHECKS))}")
    device = pick_device(wanted.device)
    if device not in ("cuda", "cpu"):
        raise ConfigError(
            f"the checks run on cuda or cpu, got --device {device}; CUDA_VISIBLE_DEVICES chooses among GPUs"
        )
    folder = wanted.out or free_folder(Path("runs") / "gpu-check")
    make_folder(folder, "--out")
    if any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty, and may hold the runs of another check; choose another --out")
    began, results = time.monotonic(), []
    machine = about(device)
    lab = Lab(device, int(machine["GPUs"]), gpu_bytes(device), folder.resolve(), wanted.timeout_s)
    for name in wanted.only or CHECKS:
        left = began + 60 * wanted.minutes - time.monotonic()
        result = Result(name, "left out", why="no time was left")
        if left > 0:
            done = carry_out(CHECKS[name], dataclasses.replace(lab, timeout_s=min(wanted.timeout_s, left)))
            stopped = done.verdict == "wrong" and left < wanted.timeout_s and done.seconds >= left
            result = dataclasses.replace(result, seconds=done.seconds) if stopped else done
        results.append(result)
        console.print(row(results[-1]), highlight=False, markup=False, soft_wrap=True)
        (folder / "report.txt").write_text(report(results, machine))
    console.print(f"report: {folder / 'report.txt'}", highlight=False, markup=False, soft_wrap=True)
    return not any(result.verdict == "wrong" for result in results)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. The exit code is 1 if something is wrong."""
    console = Console()
    with errors_in_one_line(console):
        if not check(parse(GPUCheck(), argv, prog="python -m harness.gpu_check"), console):
            sys.exit(1)


if __name__ == "__main__":
    main()
