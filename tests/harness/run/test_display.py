"""What the terminal says of a run while it trains."""

from __future__ import annotations

import pytest
from rich.console import Console

from harness.run.display import Display

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
    "time/update_s": 1.0,
}


def test_updates_that_teach_nothing_are_said_once_with_the_mend(capsys: pytest.CaptureFixture[str]) -> None:
    none = FINE | {"rollout/success": 0.0, "train/zero_advantage_groups": 1.0}
    alike = FINE | {"train/zero_advantage_groups": 1.0}
    with Display(Console()).updates(0, 6) as bars:
        for update, metrics in enumerate([FINE, none, none, alike, alike, FINE]):
            bars.update_ended(update, metrics)
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert len(notes) == 2
    assert notes[0].startswith("note: in update 1 no episode succeeded.")
    assert notes[1].startswith("note: in update 3 all episodes of each group had the same reward")
    assert "--k0" in notes[0]
    assert "--group-size" in notes[1]
