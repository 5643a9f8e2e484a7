"""The picture of the terminal: drawn from a recording, which is of the present command."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from harness.terminal.display import _HEADER

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


@pytest.fixture
def terminal():
    return runpy.run_path(str(ROOT / "tools" / "terminal.py"))


def test_a_command_is_recorded_line_by_line_and_drawn(terminal, tmp_path):
    says = "import time; print('<one>'); time.sleep(0.3); print('2' * 100)"
    terminal["record"](tmp_path / "say.cast", [sys.executable, "-c", says])
    header, first, second = map(json.loads, (tmp_path / "say.cast").read_text("utf-8").splitlines())
    assert (header["version"], first[2], second[2]) == (2, "<one>\r\n", "2" * 100 + "\r\n")
    assert second[0] - first[0] > 0.2
    picture = terminal["draw"](tmp_path / "say.cast")
    assert ">&lt;one&gt;</text>" in picture
    assert f">{'2' * header['width']}</text>" in picture  # and the rest in the next line


def test_a_command_that_fails_is_no_recording(terminal, tmp_path):
    with pytest.raises(SystemExit, match="status 3"):
        terminal["record"](tmp_path / "say.cast", [sys.executable, "-c", "raise SystemExit(3)"])


def test_the_readme_s_picture_is_its_recording_s_and_shows_what_a_run_prints_today(terminal):
    recording = IMAGES / "quickstart.cast"
    assert (IMAGES / "quickstart.svg").read_text("utf-8") == terminal["draw"](recording)
    assert _HEADER in recording.read_text("utf-8"), "record it again: tools/terminal.py says how"
