from pathlib import Path

import pytest
from child import python


@pytest.mark.campaign
def test_the_commands_of_the_page_run_on_two_ranks(tmp_path):
    said = python(Path(__file__).parents[2] / "tools" / "rehearse.py", tmp_path / "runs")
    assert said.count("  done in ") >= 8  # nine with AppWorld's benchmark
    assert said.count("  stopped after an update") == 1
