import json
import sys
import zipfile
from pathlib import Path

import pytest

from eh_gym.errors import EHError, MissingBackendError
from envs import backends

TINY = backends.Backend("tiny", "1.0", {"tinydist": "1.0"})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(backends, "all_backends", lambda: {"tiny": TINY})
    return tmp_path / "cache"


@pytest.fixture
def commands(cache, monkeypatch):
    """Stands for venv and pip; the list of the commands' words. ``commands.fail`` is what pip then says."""

    class Commands(list):
        fail, waits = "", None

        def run(self, command, **_):
            self.append(command[1:4])
            if command[2] == "venv":
                if self.waits is not None:
                    assert self.waits.wait(60)
                (Path(command[-1]) / "bin").mkdir(parents=True)
                (Path(command[-1]) / "bin" / "python").symlink_to(sys.executable)
            elif self.fail:
                raise EHError(self.fail)

    made = Commands()
    monkeypatch.setattr(backends, "run", made.run)
    return made


def quiet(_):
    pass


def test_builds_where_the_cache_is_and_once(cache, commands):
    said = []
    python = backends.install("tiny", say=said.append)
    assert python == backends.backend_python("tiny")
    assert cache in python.parents
    assert f"{sys.version_info[0]}{sys.version_info[1]}" in backends.venv_dir(TINY).name
    assert str(backends.venv_dir(TINY)) in said[0]
    backends.install("tiny", say=said.append)
    assert "is installed" in said[-1]
    assert [words[1].split()[0] for words in commands] == ["venv", "pip", "import"]  # the last compiles
    backends.install("tiny", force=True, say=quiet)
    assert len(commands) == 6


def other_packages(path):
    (path / ".complete").write_text(json.dumps({"tinydist": "0.9"}) + "\n")


def interpreter_gone(path):
    (path / "bin" / "python").unlink()


@pytest.mark.parametrize("spoil", [other_packages, interpreter_gone])
def test_an_installation_that_is_not_whole_is_seen_and_built_again(commands, spoil):
    backends.install("tiny", say=quiet)
    spoil(backends.venv_dir(TINY))
    with pytest.raises(MissingBackendError, match=r"tinydist 1\.0.*python -m envs install tiny$"):
        backends.backend_python("tiny")
    backends.install("tiny", say=quiet)
    assert backends.backend_python("tiny").exists()
    assert len(commands) == 6


@pytest.mark.parametrize("force", [False, True])
def test_a_failed_installation_says_why_and_is_never_taken_for_whole(commands, force):
    if force:
        backends.install("tiny", say=quiet)
    commands.fail = "no route to host"
    with pytest.raises(EHError, match="no route to host"):
        backends.install("tiny", force=force, say=quiet)
    with pytest.raises(MissingBackendError):
        backends.backend_python("tiny")


def test_the_finishing_script_runs_in_the_new_virtualenv_away_from_the_users_home(cache, tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "tinydist-1.0.dist-info"
    files = {
        "tinydist.py": "x = 1\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tinydist\nVersion: 1.0\nRequires-Dist: no-such-dependency\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(wheels / "tinydist-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    home = tmp_path / "user"
    home.mkdir()
    for name in ("HOME", "IPYTHONDIR", "APPWORLD_ROOT", "PYTHONPATH", "PIP_CONSTRAINT"):
        monkeypatch.setenv(name, str(home))
    script = tmp_path / "finish.py"
    script.write_text(
        "import json, os, sys\n"
        "open(os.path.expanduser('~/left'), 'w').close()\n"
        "import tinydist\n"
        "json.dump([sys.prefix, os.getcwd(), sys.path, dict(os.environ)], open('told', 'w'))\n"
    )
    finished = backends.Backend("tiny", "1.0", {"tinydist": "1.0"}, finish=script)
    monkeypatch.setattr(backends, "all_backends", lambda: {"tiny": finished})
    python = backends.install("tiny", say=quiet)
    venv = backends.venv_dir(finished)
    prefix, cwd, path, environment = json.loads((venv / "told").read_text())
    assert prefix == cwd == str(venv) == str(python.parent.parent)
    assert not [entry for entry in path if str(home) in entry or entry == str(tmp_path)]
    assert not [name for name, value in environment.items() if str(home) in value]
    assert environment["PYTHON_DOTENV_DISABLED"] == "1"
    assert not (home / "left").exists()
    assert not Path(environment["HOME"]).exists()
