import os
import subprocess
import sys

import pytest

from envs import runtime
from envs.__main__ import main


@pytest.fixture
def nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_doctor_names_what_is_missing_and_the_command(nothing_installed, capsys):
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert f"cache      {nothing_installed}" in told
    assert "bfcl       MISSING: not installed" in told
    assert "to mend it, run: python -m envs install bfcl\n" in told


def test_doctor_is_content_where_all_is_there(bfcl_python, capsys):
    assert main(["doctor", "bfcl"]) == 0
    assert "bfcl       ok: bfcl-eval 2026.3.23, mpmath 1.3.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["install", "appworld"], "error: AppWorld is not part of this release"),
        (["doctor", "appworld"], "error: AppWorld is not part of this release"),
        (["install", "nothing"], "error: there is no backend 'nothing'; choose from bfcl"),
    ],
)
def test_unknown_backends_fail_with_the_choices(nothing_installed, capsys, arguments, error):
    assert main(arguments) == 1
    assert error in capsys.readouterr().err
    assert not list(nothing_installed.iterdir())


def test_install_installs_each_once(monkeypatch):
    done = []
    monkeypatch.setattr(runtime, "install", lambda name, force: done.append((name, force)))
    assert main(["install", "all"]) == 0
    assert main(["install", "bfcl", "bfcl", "--force"]) == 0
    assert done == [("bfcl", False), ("bfcl", True)]


def test_list_names_every_environment(nothing_installed, capsys):
    assert main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(lines) == ["EH-Cabinet-v0", "EH-CabinetLocked-v0", "EH-BFCL-v0", "EH-AppWorld-v0"]
    assert "train 480, dev 128, test 192, all 800" in lines["EH-BFCL-v0"]
    assert "not installed; run: python -m envs install bfcl" in lines["EH-BFCL-v0"]
    assert "built in" in lines["EH-Cabinet-v0"]


def test_list_knows_the_registered_ids(capsys):
    from eh_gym.registration import ENTRY_POINTS

    main(["list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ENTRY_POINTS)


def test_as_a_command(nothing_installed):
    done = subprocess.run(
        [sys.executable, "-m", "envs", "doctor", "bfcl"], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 1
    assert "python -m envs install bfcl" in done.stdout
    assert subprocess.run([sys.executable, "-m", "envs"], capture_output=True).returncode == 2
