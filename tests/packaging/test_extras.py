"""Every extra has a virtualenv of its own to be tried in: tox run -m extras."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_extra_is_tried_alone() -> None:
    setup, tox = ConfigParser(interpolation=None), ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    tox.read(ROOT / "tox.ini")
    (section,) = (name for name in tox.sections() if name.startswith("testenv:extra-"))
    tried = re.fullmatch(r"testenv:extra-\{([\w,]+)\}", section)
    assert tried is not None
    assert set(tried[1].split(",")) == {"core", *setup["options.extras_require"]}
    commands = re.findall(r"^(\w+): python ", tox[section]["commands"], re.MULTILINE)
    assert set(commands) == set(tried[1].split(","))
