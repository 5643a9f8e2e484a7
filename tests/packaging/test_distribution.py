"""The wheel and the source distribution: what is in them, what an index says to them, and what an installation has.

`tox run -e package` and `tox run -m pythons` run this. The wheel is built from the source distribution.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytest.importorskip("build", reason="tox run -e package has it")

ROOT = Path(__file__).parents[2]
PACKAGES = ("eh_gym", "envs", "harness")

EPISODE = """
import gymnasium as gym
import eh_gym

env = eh_gym.ElasticTimeLimit(gym.make("EH-Cabinet-v0"), eh_gym.ElasticHorizon(k0=50))
env.reset(seed=0)
done = False
while not done:
    _, reward, done, _, info = env.step(env.unwrapped.expert())
print(reward, info["outcome"]["success"], eh_gym.__version__, eh_gym.__file__)
"""
USER = """
import eh_gym
from harness import GRPOConfig
from harness.settings.loss import Loss

controller: eh_gym.HorizonController = eh_gym.ElasticHorizon(k0=15)
reveal_type(eh_gym.make_vec("EH-Cabinet-v0", 2, controller))
GRPOConfig.recipe("quickstart", updates=3, loss=Loss(kl_coef=1)).updates
eh_gym.ElasticHorizon(k0="15")
GRPOConfig.recipe("quickstart", horizn=3)
GRPOConfig.recipe("quickstart", updates="a")
Loss(kl_coeff=1)
GRPOConfig(updatez=3)
"""
MISTAKES = ("k0", "horizn", "updates", "kl_coeff", "updatez")


def _run(*command, cwd):
    # With it the checkout would be found.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def _must(*command, cwd):
    done = _run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    _must(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("user") / "venv"
    _must(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    _must(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder.parent)
    return python


def test_the_source_distribution_holds_every_tracked_file(built):
    listed = _run("git", "ls-files", cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a checkout")
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    assert tracked
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked - held == set()


def test_the_wheel_holds_the_packages_and_the_recipes_whole_and_nothing_else(wheel):
    recipes = {f"harness/recipes/{path.name}": path.read_text("utf-8") for path in (ROOT / "recipes").glob("*.toml")}
    wanted = {*recipes} | {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".md")
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert held == wanted
        assert {name: archive.read(name).decode() for name in recipes} == recipes


def test_both_pass_the_checks_of_the_release_workflow(built):
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    checks = re.findall(r"- run: python -m (twine|check_wheel_contents)(.*) dist/(\*.*)", workflow)
    assert len(checks) == 2
    for tool, how, files in checks:
        _must(sys.executable, "-m", tool, *how.split(), *built.glob(files), cwd=ROOT)


def test_the_core_needs_numpy_and_gymnasium_alone(python, tmp_path):
    listed = json.loads(_must(python, "-m", "pip", "list", "--format", "json", cwd=tmp_path))
    of_gymnasium = {Requirement(r).name.lower() for r in requires("gymnasium") or [] if "extra ==" not in r}
    wanted = {"elastic-horizon", "numpy", "gymnasium", *of_gymnasium}
    assert {entry["name"].lower().replace("_", "-") for entry in listed} - {"pip", "setuptools"} <= wanted


def test_an_episode_and_a_command_run_from_the_installed_wheel(wheel, python, tmp_path):
    reward, success, version, where = _must(python, "-c", EPISODE, cwd=tmp_path).split()
    assert (reward, success, version) == ("1.0", "True", wheel.name.split("-")[1])
    assert Path(where).is_relative_to(python.parents[1])
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").touch()  # another project's
    assert "EH-Cabinet-v0" in _must(python.parent / "eh-envs", "list", cwd=tmp_path)


def test_types_are_seen_from_outside(python, tmp_path):
    (tmp_path / "user.py").write_text(USER)
    done = _run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "user.py", cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert 'Revealed type is "eh_gym.vector.thread.ThreadVectorEnv"' in done.stdout, done.stdout + done.stderr
    assert len(errors) == len(MISTAKES), errors
    assert all(f'rgument "{name}"' in error for name, error in zip(MISTAKES, errors, strict=True)), errors
