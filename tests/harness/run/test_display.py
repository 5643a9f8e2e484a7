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


FINE = {
    "rollout/success_long": 0.5,
    "rollout/length_success_p90": 12.0,
    "rollout/success": 0.5,
    "rollout/success_ceiling": 1.0,
    "rollout/length_mean": 5.0,
    "rollout/length_success_mean": 5.0,
    "rollout/truncated": 0.0,
    "tokens/update": 99.0,
    "train/zero_advantage_groups": 0.5,
    "train/entropy": 1.0,
    "train/logp_difference_mean": 0.01,
    "time/update_s": 1.0,
}


def test_updates_that_teach_nothing_are_noted_once_with_the_flag_to_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    none = FINE | {"rollout/success": 0.0, "train/zero_advantage_groups": 1.0}
    alike = FINE | {"train/zero_advantage_groups": 1.0}
    with Display(Console()).updates(0, 6) as bars:
        for update, metrics in enumerate([FINE, none, none, alike, alike, FINE]):
            bars.update_ended(update, metrics)
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note"))
    assert "update 1" in first
    assert "--k0" in first
    assert "update 3" in second
    assert "--group-size" in second
