"""The command `harness.gpu_check` on a machine without a GPU."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from harness.diagnostics.checks import CHECKS, Check
from harness.diagnostics.lab import Lab
from harness.diagnostics.verdict import Result
from harness.gpu_check import main
from harness.planning.gpus import gpu_named
from harness.planning.update_time import update_time_of
from harness.settings.grpo import GRPOConfig
from harness.settings.plan import Plan


def test_the_command_writes_a_table_and_goes_on_after_a_check_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_check_that_the_time_ends_is_left_out_and_so_are_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def slow(check: Check, lab: Lab) -> Result:
        given.append(lab.timeout_s)
        time.sleep(lab.timeout_s)
        return Result(check.name, "wrong", lab.timeout_s, why="did not end")

    monkeypatch.setattr("harness.diagnostics.processes.carry_out", slow)
    words = ["--device", "cpu", "--minutes", "0.005", "--out", str(tmp_path / "out")]
    main([*words, "--only", "transformers", "two ranks"])
    said = (tmp_path / "out" / "report.txt").read_text()
    assert len(given) == 1
    assert given[0] <= 0.3
    assert len(re.findall("left out .* no time was left", said)) == 2


def test_promises_of_speed_are_those_of_the_gpu_by_its_name() -> None:
    for name, tflops in (
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165),
    ):
        found = gpu_named(name)
        assert found is not None
        assert found.tflops == tflops
    assert gpu_named("AMD Instinct MI300X") is None
    train = GRPOConfig(model="Qwen/Qwen2.5-7B-Instruct", env="EH-BFCL-v0", dtype="bfloat16")
    h100, l40s = (
        update_time_of(Plan(train=train, peak_tflops=gpu.tflops), bandwidth=gpu.terabytes * 1e12).seconds
        for gpu in map(gpu_named, ("NVIDIA H100 80GB HBM3", "NVIDIA L40S"))
        if gpu
    )
    assert 2.7 < l40s / h100 < 3.9  # between the ratios of their peaks and of their bandwidths


@pytest.mark.campaign
def test_every_path_that_a_cpu_has_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    without = [name for name, check in CHECKS.items() if not check.vllm]
    limits = ["--timeout-s", "1200", "--minutes", "60"]
    main(["--device", "cpu", "--out", str(tmp_path / "out"), *limits, "--only", *without])
    table = [line for line in capsys.readouterr().out.splitlines() if line[:38].strip() in without]
    assert [line[39:44] for line in table] == ["right"] * len(without)
