"""Every command shows an error as it is, brackets and all, which rich would take for markup."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from eh_gym.errors import ConfigError

TEXT = "run pip install -e '.[train,vllm]', see [/x]"


COMMANDS = [
    ("harness.grpo", "train", []),
    ("harness.evaluate", "run", ["--env", "EH-Cabinet-v0", "--policy", "expert"]),
    ("harness.plan", "show", []),
    ("harness.sweep", "sweep", ["--suite", "all"]),
    ("harness.report", "report", ["somewhere"]),
    ("harness.simulate", "simulate", []),
]


@pytest.mark.parametrize(("module", "called", "words"), COMMANDS)
def test_a_command_to_run_is_shown_whole(
    module: str, called: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ConfigError(TEXT)

    command = import_module(module)
    monkeypatch.setattr(command, called, fails)
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 2
    assert TEXT in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("module", "called", "words"), COMMANDS)
def test_an_interrupt_ends_a_command_with_one_line(
    module: str,
    called: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def stops(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    command = import_module(module)
    monkeypatch.setattr(command, called, stops)
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 130
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("stopped")
    assert "Traceback" not in out
    if module == "harness.grpo":
        (run,) = (tmp_path / "runs").iterdir()
        assert out.splitlines()[-1] == f"stopped; continue with --resume runs/{run.name}"
