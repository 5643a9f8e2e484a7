"""The check of a machine: what it measures on a CPU, and that it sees what is broken."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.diagnostics import probes
from harness.diagnostics.checks import CHECKS, carry_out, judged, largest_difference, report, verdict
from harness.diagnostics.lab import Lab
from harness.diagnostics.measurement import Measurement
from harness.diagnostics.process_group import end_group
from harness.gpu_check import main
from harness.policy import attention


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab("cpu", 0, 0, tmp_path)


def rows(**changes: Any) -> list[dict[str, Any]]:
    row = {
        "train/logp_difference_mean": 1e-7,
        "rollout/environment_errors": 0.0,
        "rollout/policy_lag": 0.0,
        "train/skipped_steps": 0.0,
        "time/update_s": 1.0,
    }
    return [dict.fromkeys(changes, 0.0) | row, row | changes]


def test_a_promise_that_is_broken_makes_a_path_wrong_and_one_of_speed_slow() -> None:
    right, slow, wrong = (
        Measurement("a", 1, least=1, most=1),
        Measurement("b", 1, least=2, speed=True),
        Measurement("c", math.nan, most=2),
    )
    found = [verdict("x", measurements, 1.0) for measurements in ([right], [right, slow], [right, slow, wrong])]
    assert [result.verdict for result in found] == ["right", "slow", "wrong"]
    assert "not as promised: c nan (<= 2)" in report(found, {"GPU": "none"})


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        ({"train/logp_difference_mean": 0.3}, ["trainer - sampler, nats"]),  # a hand-over that lost the weights
        ({"train/logp_difference_mean": None}, ["trainer - sampler, nats"]),
        ({"rollout/policy_lag": 1.0}, ["updates behind"]),
        ({"rollout/cache_preemptions": 3.0}, ["preemptions"]),
    ],
)
def test_a_run_is_judged_by_its_metrics(lab: Lab, changes: dict[str, Any], broken: list[str]) -> None:
    assert [measurement.what for measurement in judged(rows(**changes), lab) if not measurement.kept] == broken


def test_two_runs_differ_by_their_largest_relative_difference_without_the_clock_s() -> None:
    assert largest_difference(rows(), rows(**{"time/update_s": 9.0})) == 0
    assert largest_difference(rows(), rows(**{"rollout/policy_lag": 1.0})) == 1
    assert largest_difference(rows(), rows(**{"train/logp_difference_mean": None})) == math.inf
    assert largest_difference(rows(), rows()[:1]) == math.inf


def test_attention_that_loses_the_shared_prompt_is_seen(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(measurement.kept for measurement in probes.packed_attention(lab))
    right = attention.packed_attention

    def wrong(*tensors: Any, segments: Any = None, **rest: Any) -> Any:
        if segments is not None:
            segments = attention.Segments(segments.lengths, [-1] * len(segments.parents), segments.device)
        return right(*tensors, segments=segments, **rest)

    attention.AttentionInterface.register(attention.PACKED, wrong)
    try:
        assert not all(measurement.kept for measurement in probes.packed_attention(lab))
    finally:
        attention.AttentionInterface.register(attention.PACKED, right)


def test_the_update_is_measured(lab: Lab) -> None:
    pytest.importorskip("peft")
    found = {measurement.what: measurement for measurement in probes.policy_update(lab)}
    assert found["tokens/s"].value > 0
    assert all(measurement.kept for measurement in found.values())


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
    assert "the check ended with exit code 1" in said
    assert "two ranks                              left out" in said
    assert "GPUs: 0" in capsys.readouterr().out or "GPUs: 0" in said


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


def test_a_check_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "vlm"])
    assert "there is no check 'vlm'; the checks are 'packed attention', 'transformers', 'vllm'" in " ".join(
        capsys.readouterr().out.split()
    )


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
