"""The command `harness.gpu_check` on a machine without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from harness.diagnostics.checks import CHECKS
from harness.diagnostics.lab import Lab
from harness.gpu_check import main


def test_the_command_writes_a_table_and_goes_on_after_a_check_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not torch.cuda.is_available() or pytest.skip("needs a machine without a GPU")
    monkeypatch.setattr("harness.run.runtime.pick_device", lambda name: name)
    monkeypatch.setattr("harness.run.runtime.gpu_bytes", lambda device: 0)
    monkeypatch.setattr(Lab, "ranks", 1)
    words = ["--only", "packed attention", "two ranks", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as end:
        main(["--device", "cuda", *words])  # which this machine has not
    assert end.value.code == 1
    said = (tmp_path / "out" / "report.txt").read_text()
    assert "Traceback" in said

    assert re.search("two ranks +left out", said)
    assert "GPUs: 0" in capsys.readouterr().out or "GPUs: 0" in said


def test_a_folder_with_the_runs_of_another_check_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "transformers.json").write_text("[]")  # would count as this check's answer
    with pytest.raises(SystemExit):
        main(["--device", "cpu", "--out", str(tmp_path), "--only", "transformers"])
    assert "is not empty" in capsys.readouterr().out


@pytest.mark.campaign
def test_every_path_that_a_cpu_has_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    without = [name for name, check in CHECKS.items() if not check.vllm]
    limits = ["--timeout-s", "1200", "--minutes", "60"]
    main(["--device", "cpu", "--out", str(tmp_path / "out"), *limits, "--only", *without])
    table = [line for line in capsys.readouterr().out.splitlines() if line[:38].strip() in without]
    assert [line[39:44] for line in table] == ["right"] * len(without)
