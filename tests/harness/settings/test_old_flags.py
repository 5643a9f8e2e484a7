"""Old spellings of flags."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from harness.settings.old_flags import with_current_names

REFERENCE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "reference.py"))


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("grpo", "--run-dir", "--out"),
        ("grpo", "--lr", "--learning-rate"),
        ("grpo", "--tti-stages", "--stages"),
        ("sweep", "--lr", "--learning-rate"),
        ("benchmark", "--k", "--rollouts"),
    ],
)
def test_an_old_flag_is_read_under_its_present_name(command: str, old: str, new: str) -> None:
    assert with_current_names([old, "1"], command) == [new, "1"]
    assert with_current_names([f"{old.replace('-', '_').replace('__', '--', 1)}=1"], command) == [f"{new}=1"]
    assert f"`{new}`" in REFERENCE["flags"](REFERENCE["COMMANDS"][f"harness.{command}"]([]))


def test_other_words_stay_as_they_are() -> None:
    assert with_current_names(["--k", "3", "run-dir"], "evaluate") == ["--k", "3", "run-dir"]
