"""What the terminal says of a run while it trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from harness.run.display import Display
from harness.settings.grpo import GRPOConfig


def test_texts_with_brackets_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """rich took them for markup: "[qwen]" vanished, and "[/x]" ended the run."""
    display = Display(Console(width=200))
    display.note("no [qwen] [/x]")
    display.plan(GRPOConfig(model="/models/[exp]/[/m]"), tmp_path, resume=False)
    out = capsys.readouterr().out
    assert "no [qwen] [/x]" in out
    assert "/models/[exp]/[/m]" in out


@pytest.mark.parametrize(("split", "kind"), [("", "held-out"), ("test", "training")])
def test_tasks_that_the_run_trains_on_are_not_called_held_out(
    split: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, display = GRPOConfig(split=split), Display(Console(width=200))
    display.plan(config, tmp_path, resume=False)
    assert ("the run trains on this split, too" in capsys.readouterr().out) == (kind == "training")
    found = {
        "tasks": 2,
        "mean_interval": (0, 1),
        "mean_at_k": 0,
        "length_success_mean": None,
        "steps_per_optimum": None,
    }
    display.summary(
        config, tmp_path, {when: {"sampled": found, "greedy": found} for when in ("before", "after")}, 1.0, 1.0
    )
    assert f"success on 2 {kind} tasks" in capsys.readouterr().out
