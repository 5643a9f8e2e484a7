"""Every extra has a virtualenv of its own to be tried in: tox run -m extras."""

import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_extra_is_tried_alone() -> None:
    setup, tox = ConfigParser(interpolation=None), ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    tox.read(ROOT / "tox.ini")
    sections = [name for name in tox.sections() if name.startswith("testenv:extra-")]
    tried = [name for section in sections for name in re.findall(r"\w+", section.partition("extra-")[2])]
    assert sorted(tried) == sorted(["core", *setup["options.extras_require"]])
    for section in sections:
        names = re.findall(r"\w+", section.partition("extra-")[2])
        commands = set(re.findall(r"^(\w+): python ", tox[section]["commands"], re.MULTILINE))
        assert commands == (set(names) if len(names) > 1 else set())
