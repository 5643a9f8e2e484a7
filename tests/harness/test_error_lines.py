"""Every command shows an error as it is, brackets and all, which rich would take for markup."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from unittest import mock

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
def test_an_error_is_shown_whole_and_an_interrupt_ends_a_command_with_one_line(
    module: str,
    called: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    command, shown = import_module(module), []
    for raised, code in ((ConfigError(TEXT), 2), (KeyboardInterrupt(), 130)):
        monkeypatch.setattr(command, called, mock.Mock(side_effect=raised))
        with pytest.raises(SystemExit) as end:
            command.main(words)
        assert end.value.code == code
        shown.append(capsys.readouterr().out)
    assert TEXT in " ".join(shown[0].split())
    assert "Traceback" not in shown[1]
    last = shown[1].splitlines()[-1]
    assert last.startswith("stopped")
    if module == "harness.grpo":
        (run,) = (tmp_path / "runs").iterdir()
        assert f"stopped; continue with --resume runs/{run.name}, from its beginning" in last
