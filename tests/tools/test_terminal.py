"""The picture of the terminal: drawn from a recording, which is of the present command."""

import re
import runpy
from pathlib import Path

from harness.terminal.display import _COLUMNS

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


def test_the_readme_s_picture_is_its_recording_s_and_shows_what_a_run_prints_today():
    terminal = runpy.run_path(str(ROOT / "tools" / "terminal.py"))
    recording = IMAGES / "quickstart.cast"
    assert (IMAGES / "quickstart.svg").read_text("utf-8") == terminal["draw"](recording)
    header = " +".join(map(re.escape, ("update", "K", *_COLUMNS)))
    assert re.search(header, recording.read_text("utf-8")), "record it again: tools/terminal.py says how"
