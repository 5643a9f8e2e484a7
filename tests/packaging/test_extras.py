"""Every extra has a virtualenv of its own to be tried in: tox run -m extras."""

import re
from configparser import ConfigParser
from pathlib import Path

import harness

ROOT = Path(__file__).parents[2]
SETUP = ConfigParser(interpolation=None)
SETUP.read(ROOT / "setup.cfg")
EXTRAS = SETUP["options.extras_require"]


def test_every_extra_is_tried_alone():
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    sections = [name for name in tox.sections() if name.startswith("testenv:extra-")]
    tried = [name for section in sections for name in re.findall(r"\w+", section.partition("extra-")[2])]
    assert sorted(tried) == sorted(["core", *EXTRAS])
    for section in sections:
        names = re.findall(r"\w+", section.partition("extra-")[2])
        commands = set(re.findall(r"^(\w+): python ", tox[section]["commands"], re.MULTILINE))
        assert commands == (set(names) if len(names) > 1 else set())


def test_the_commands_ask_for_all_packages_of_their_extra():
    train = re.findall(r"^[a-z]\w+", EXTRAS["train"], re.MULTILINE)
    assert sorted(harness._NEEDED) == sorted({*train} - {"tomli"})
