"""The rehearsal of docs/multi-gpu.md knows every command of the page, and they run."""

import runpy
from pathlib import Path

import pytest
from child import python

SCRIPT = Path(__file__).parents[2] / "tools" / "rehearse.py"


def test_every_command_of_the_page_is_rehearsed_or_left_out_for_a_reason():
    script = runpy.run_path(str(SCRIPT))
    plans = [script["rehearsal"](words) for words in script["commands"](script["PAGE"].read_text())]
    assert [len(plan) for plan in plans if not isinstance(plan, str)] == [1, 1, 1, 1, 1, 1, 1, 1, 2, 1]
    with pytest.raises(ValueError, match="is new on the page"):
        script["rehearsal"](["make", "all"])


@pytest.mark.campaign
def test_the_commands_of_the_page_run_on_two_ranks_of_a_cpu(tmp_path):
    said = python(SCRIPT, tmp_path / "runs")
    assert said.count("  done in ") >= 8  # nine with AppWorld's benchmark
    assert said.count("  stopped after an update") == 1
