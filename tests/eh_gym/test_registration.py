import runpy
import subprocess
import sys
from importlib import import_module, metadata

import gymnasium as gym
import pytest
from child import python

import eh_gym
from eh_gym.errors import MissingBackendError
from eh_gym.registration import register_envs


def _python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300)


def test_registering_again_keeps_the_users_own_entry(monkeypatch):
    mine = gym.envs.registration.EnvSpec("EH-Cabinet-v0", entry_point="elsewhere:Env")
    monkeypatch.setitem(gym.registry, "EH-Cabinet-v0", mine)
    register_envs()
    assert gym.registry["EH-Cabinet-v0"] is mine


def test_a_prefixed_id_needs_no_import():
    code = "import gymnasium; print(gymnasium.make('eh_gym:EH-Cabinet-v0').reset(seed=0)[0])"
    assert python("-c", code).startswith("start ")


def test_importing_registers_and_does_nothing_else():
    done = _python(
        "import os, logging, gymnasium\n"
        "environ, handlers, ids = dict(os.environ), list(logging.root.handlers), set(gymnasium.registry)\n"
        "import eh_gym, sys\n"
        "assert dict(os.environ) == environ and logging.root.handlers == handlers\n"
        "assert all(i.startswith('EH-') for i in set(gymnasium.registry) - ids)\n"
        "print({'envs', 'harness', 'torch'} & set(sys.modules))"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(("env_id", "backend"), [("EH-BFCL-v0", "bfcl"), ("EH-AppWorld-v0", "appworld")])
def test_an_environment_without_its_backend_names_the_command(env_id, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path))
    with pytest.raises(MissingBackendError, match=f"python -m envs install {backend}$"):
        gym.make(env_id, split="train")
    assert list(tmp_path.iterdir()) == []


def test_all_is_complete():
    modules = [import_module(f"eh_gym.{name}") for name in ("horizon", "wrappers", "spaces", "vector")]
    names = {name for module in modules for name in module.__all__}
    assert list(eh_gym.__all__) == sorted({*names, "errors", "split_reply"})
    assert all(hasattr(eh_gym, name) for name in eh_gym.__all__)


def test_a_source_tree_that_nobody_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: metadata.distribution(f"no-{name}"))
    assert runpy.run_path(eh_gym.__file__)["__version__"] == "0+unknown"


def test_making_an_environment_names_another_projects_package_called_envs(tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").touch()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        # behind an empty package, the finder of an editable installation would find ours
        "sys.meta_path[:] = [finder for finder in sys.meta_path if 'Editable' not in repr(finder)]\n"
        "import gymnasium; gymnasium.make('eh_gym:EH-Cabinet-v0')"
    )
    done = _python(code, str(tmp_path))
    assert "ForeignPackageError" in done.stderr
    assert str(tmp_path / "envs") in done.stderr
