"""The command line of every command: flags in panels, settings filled in, errors in one line."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tyro
from rich.console import Console

from eh_gym.errors import ConfigError
from harness.grpo import main
from harness.settings.command_line import errors_in_one_line, parse
from harness.settings.grpo import FIRST_FLAGS

REFERENCE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "reference.py"))
COMMANDS: dict[str, Any] = REFERENCE["COMMANDS"]


@dataclass(frozen=True)
class ColourFlags:
    """What it looks like."""

    colour: str = "red"
    """The colour."""


@dataclass(frozen=True)
class SizeFlags:
    """How big it is."""

    width: int = 3
    """The width."""


@dataclass(frozen=True)
class Inner:
    """What has its field's name in front."""

    width: int = 1
    """Its own width."""


@dataclass(frozen=True)
class Thing(SizeFlags, ColourFlags):
    """A thing."""

    inner: Inner = field(default_factory=Inner)
    """What is inside."""


def test_groups_keep_the_plain_names_and_a_field_puts_its_own_in_front() -> None:
    assert parse(Thing(), [], prog="thing") == Thing()
    words = ["--width", "9", "--colour", "blue", "--inner.width", "2"]
    assert parse(Thing(), words, prog="thing") == Thing(width=9, colour="blue", inner=Inner(2))


def test_a_missing_or_unknown_flag_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--width", "1", "--colou", "red"], ["--width", "many"]):
        with pytest.raises(SystemExit) as end:
            parse(Thing(width=tyro.MISSING), words, prog="thing")
        assert end.value.code == 2
    assert "--colou" in capsys.readouterr().err


def test_an_error_is_one_line_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, errors_in_one_line(Console()):
        raise ConfigError("run pip install -e '.[train]', see [/x]")
    assert end.value.code == 2
    assert capsys.readouterr().out == "error: run pip install -e '.[train]', see [/x]\n"
    with pytest.raises(SystemExit) as end, errors_in_one_line(Console()):
        raise KeyboardInterrupt("go on with --out [x]")
    assert (end.value.code, capsys.readouterr().out) == (130, "stopped; go on with --out [x]\n")
    with pytest.raises(ZeroDivisionError), errors_in_one_line(Console()):  # our own mistakes keep their traceback
        print(1 // 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(COMMANDS[command]([]), ["--help"], prog=f"python -m {command}")
    assert end.value.code == 0
    assert f"python -m {command}" in capsys.readouterr().out


def test_help_shows_the_first_flags_and_help_all_shows_every_one(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(word: str) -> set[str]:
        with pytest.raises(SystemExit) as end:
            main([word])
        assert end.value.code == 0
        return set(re.findall(r"^\W*(--(?:no-)?[a-z0-9][\w.-]+)", capsys.readouterr().out, re.MULTILINE))

    everything = {
        name.split("`")[1] for name in REFERENCE["flags"](COMMANDS["harness.grpo"]([])) if name.startswith("`--")
    }
    first, full = shown("--help"), shown("--help-all")
    assert everything <= full
    assert first < full
    assert {f"--{name.replace('_', '-')}" for name in FIRST_FLAGS} <= first
    assert len(first) == len(FIRST_FLAGS)
