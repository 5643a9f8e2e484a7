"""A check's process, and all that it started, end when the check does."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from harness.diagnostics.checks import CHECKS
from harness.diagnostics.lab import Lab
from harness.diagnostics.processes import carry_out, end_group


def test_a_check_that_hangs_is_killed(tmp_path: Path) -> None:
    result = carry_out(CHECKS["packed attention"], Lab("cpu", 0, 0, tmp_path, timeout_s=0.05))
    assert result.verdict == "wrong"
    assert "did not end within 0.05 s" in result.why


def test_ranks_that_lead_groups_of_their_own_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """torchrun's do, and only torchrun can end them."""
    script = "setsid sleep 99 & trap 'kill $!; wait; exit' TERM; echo $! > $0.part; mv $0.part $0; wait"
    command = ["setsid", "bash", "-c", script, str(tmp_path / "rank")]
    process = multiprocessing.get_context("spawn").Process(target=os.execvp, args=("setsid", command))
    process.start()
    while not (tmp_path / "rank").exists():
        time.sleep(0.01)
    rank = int((tmp_path / "rank").read_text())
    os.kill(rank, 0)
    end_group(process)
    with pytest.raises(ProcessLookupError):
        os.kill(rank, 0)
