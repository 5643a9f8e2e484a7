import os
import re
import sys
from importlib.metadata import version

import pytest

from eh_gym.registration import ENTRY_POINTS
from envs import backends
from envs.__main__ import main
from envs.appworld import data
from envs.appworld import install as appworld


@pytest.fixture
def nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_doctor_names_what_is_missing_and_the_command(nothing_installed, capsys):
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert str(nothing_installed) in told
    assert f"torch {version('torch')}" in told
    assert "bfcl       MISSING" in told
    assert "python -m envs install bfcl\n" in told


@pytest.mark.parametrize("command", ["install", "doctor"])
def test_unknown_backends_fail_with_the_choices(nothing_installed, capsys, command):
    assert main([command, "nothing"]) == 1
    assert re.search("'nothing'.*bfcl, appworld", capsys.readouterr().err)
    assert not list(nothing_installed.iterdir())


@pytest.fixture
def appworlds_packages(tmp_path, monkeypatch):
    """AppWorld's virtualenv is there, its data are not."""
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(backends, "backend_python", lambda name: sys.executable)
    monkeypatch.setattr(appworld, "isolation", lambda python: ["isolation: none"])


def mini(*tasks):
    datasets = data.mini_dir() / "root" / "data" / "datasets"
    datasets.mkdir(parents=True)
    (datasets / "mini.txt").write_text("\n".join(tasks))


def test_doctor_passes_without_the_benchmark_and_without_isolation(appworlds_packages, capsys):
    mini("a_1", "a_2")
    assert main(["doctor", "appworld"]) == 0
    told = capsys.readouterr().out
    for words in ("mini world: 2 tasks", "benchmark: not installed", "EH_APPWORLD_DATA_URL=", "isolation: none"):
        assert words in told


def test_install_installs_each_once(monkeypatch):
    done = []
    monkeypatch.setattr(backends, "install", lambda name, force: done.append((name, force)))
    monkeypatch.setattr(appworld, "install", lambda force, benchmark: done.append(("appworld", force, benchmark)))
    assert main(["install", "all"]) == 0
    assert main(["install", "bfcl", "bfcl", "--force"]) == 0
    assert main(["install", "appworld", "--no-data"]) == 0
    every = [("bfcl", False), ("appworld", False, True), ("tau2", False)]
    assert done == [*every, ("bfcl", True), ("appworld", False, False)]


def test_list_names_every_environment_and_counts_its_tasks_in_80_columns(nothing_installed, capsys):
    mini("a_1", "a_2")
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert max(map(len, listed.splitlines())) <= 80
    lines = {text.split()[0]: text for text in re.split(r"\n(?=\S)", listed)}
    assert list(lines) == list(ENTRY_POINTS)
    assert "train 480, dev 128, test 192, all 800" in lines["EH-BFCL-v0"]
    assert "python -m envs install bfcl" in lines["EH-BFCL-v0"]
    assert "train -, dev -, test_normal -, test_challenge -, mini 2" in lines["EH-AppWorld-v0"]
    assert "built in" in lines["EH-Cabinet-v0"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0.*token"),
        (["--token-file", os.devnull, "--host", "0.0.0.0"], "16 to 200 characters"),
    ],
)
def test_serve_refuses_a_public_address_without_a_good_token(monkeypatch, capsys, arguments, error):
    monkeypatch.delenv("EH_ENV_TOKEN", raising=False)
    assert main(["serve", "EH-Cabinet-v0", *arguments]) == 1
    assert re.search(error, capsys.readouterr().err)
