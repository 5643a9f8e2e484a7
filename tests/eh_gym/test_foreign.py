"""What a user is told where a package of another project has the name of one of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import eh_gym
from eh_gym import foreign

ROOT = Path(eh_gym.__file__).resolve().parents[1]
MAKE = "import gymnasium; print(gymnasium.make('eh_gym:EH-Cabinet-v0').spec.id)"


def _package(folder, name):
    """An empty package, such as many projects have beside their scripts."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    return folder / name


# An editable installation has a finder that finds our files behind a foreign package; a wheel has none.
NO_EDITABLE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "_EditableFinder"]
"""


def _python(*arguments, cwd):
    (cwd / "path").mkdir()
    (cwd / "path" / "sitecustomize.py").write_text(NO_EDITABLE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd / "path"), str(ROOT)]), "EH_CACHE_DIR": str(cwd)}
    env.pop("PYTHONSAFEPATH", None)
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_gym_make_says_whose_envs_it_found(tmp_path):
    found = _package(tmp_path, "envs")
    done = _python("-c", MAKE, cwd=tmp_path)
    assert f"ForeignPackageError: the package 'envs' is imported from {found}, not from {ROOT}" in done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the way out needs Python 3.11")
def test_the_advised_way_out_works(tmp_path):
    _package(tmp_path, "envs")
    assert _python("-P", "-c", MAKE, cwd=tmp_path).stdout.strip() == "EH-Cabinet-v0"


def test_a_command_of_the_harness_ends_with_one_line(tmp_path):
    found = _package(tmp_path, "envs")
    done = _python("-m", "harness.grpo", "--help", cwd=tmp_path)
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: the package 'envs' is imported from {found}, not from ")
    assert done.returncode == 1


@pytest.mark.parametrize("form", ["package", "module"])
def test_doctor_says_whose_harness_stands_in_front(tmp_path, form):
    found = _package(tmp_path, "harness") if form == "package" else tmp_path / "harness.py"
    found.touch()
    done = _python("-m", "envs", "doctor", "bfcl", cwd=tmp_path)
    assert "packages   CLASH\n" in done.stdout, done.stdout + done.stderr
    assert f"the package 'harness' is imported from {found}, not from {ROOT / 'harness'}" in done.stdout
    assert done.returncode == 1


def test_doctor_is_content_with_our_own(tmp_path):
    assert "packages   ok: envs and harness are" in _python("-m", "envs", "doctor", "bfcl", cwd=tmp_path).stdout


def test_a_distribution_in_the_same_folder_is_named(tmp_path, monkeypatch):
    for name, package in (("envs", "envs"), ("elastic_horizon", "envs"), ("other", "other")):
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1\n")
        (info / "RECORD").write_text(f"{package}/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(foreign, "_ROOT", tmp_path)
    assert foreign.sharers("envs") == ["envs"]
    monkeypatch.setattr(foreign, "_ROOT", ROOT)  # a checkout: the other's package is in site-packages, and ours is not
    assert foreign.sharers("envs") == []
