import json
import os
import stat
import subprocess
import sys
import textwrap
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eh_gym.errors import ConfigError, EHError, MissingBackendError
from envs import backends

ROOT = Path(backends.__file__).parents[1]
TINY = backends.Backend("tiny", "1.0", {"tinydist": "1.0"})

# Stands for uv: makes a real virtualenv, and "installs" by writing the distribution's metadata.
FAKE_UV = """
    #!{python}
    import os, pathlib, subprocess, sys, time
    log = pathlib.Path({log!r})
    with log.open("a") as file:
        file.write(" ".join(sys.argv[1:3]) + "\\n")
    with log.with_suffix(".all").open("a") as file:
        file.write(" ".join(sys.argv[1:]) + "\\n")
    if sys.argv[1] == "venv":
        ends = time.monotonic() + 60
        while {until!r} and not os.path.exists({until!r}) and time.monotonic() < ends:
            time.sleep(0.01)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", sys.argv[-1]], check=True)
    else:
        if {fail}:
            sys.exit("no route to host")
        assert "--no-deps" in sys.argv
        python = sys.argv[sys.argv.index("--python") + 1]
        for pin in [a for a in sys.argv if "==" in a]:
            name, version = pin.split("==")
            version = {version!r} or version
            site = subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True)
            folder = pathlib.Path(site.strip(), f"{{name}}-{{version}}.dist-info")
            folder.mkdir()
            (folder / "METADATA").write_text(f"Name: {{name}}\\nVersion: {{version}}\\n")
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(backends, "BACKENDS", {"tiny": TINY})
    return tmp_path / "cache"


@pytest.fixture
def uv(tmp_path, monkeypatch):
    """uv(...) puts the stand-in on PATH; returns the file with a line per call."""

    def install(*, fail=False, version="", until=""):
        log = tmp_path / "uv.log"
        script = tmp_path / "bin" / "uv"
        script.parent.mkdir(exist_ok=True)
        source = textwrap.dedent(FAKE_UV).strip()
        script.write_text(
            source.format(python=sys.executable, log=str(log), fail=fail, version=version, until=until) + "\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
        return log

    return install


def quiet(_):
    pass


def test_builds_where_the_cache_is_and_once(cache, uv):
    log, said = uv(), []
    python = backends.install("tiny", say=said.append)
    assert python == backends.backend_python("tiny")
    assert cache in python.parents
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}" if sys.implementation.name == "cpython" else ""
    assert tag in backends.venv_dir(TINY).name
    assert str(backends.venv_dir(TINY)) in said[0]
    backends.install("tiny", say=said.append)
    assert str(backends.venv_dir(TINY)) in said[-1]
    assert log.read_text().splitlines() == ["venv --quiet", "pip install"]


def test_an_interrupted_installation_is_seen_and_rebuilt(cache, uv):
    log = uv()
    backends.install("tiny", say=quiet)
    (backends.venv_dir(TINY) / ".complete").unlink()
    with pytest.raises(MissingBackendError, match=r"tinydist 1\.0.*python -m envs install tiny$"):
        backends.backend_python("tiny")
    state = backends.check("tiny")
    assert (state.ok, state.fix) == (False, "python -m envs install tiny")
    assert "interrupted" in state.detail
    backends.install("tiny", say=quiet)
    assert backends.check("tiny").ok
    assert len(log.read_text().splitlines()) == 4


def test_a_failed_installation_leaves_nothing_and_says_why(cache, uv):
    uv(fail=True)
    with pytest.raises(EHError, match="no route to host"):
        backends.install("tiny", say=quiet)
    assert not backends.venv_dir(TINY).exists()
    assert backends.check("tiny").detail == "not installed"


def test_two_installations_at_once_build_once(cache, uv, tmp_path):
    waits = tmp_path / "waits"
    log, said = uv(until=str(waits)), []  # the first is not done before the second waits for it

    def say(line):
        said.append(line)
        if line.startswith("waiting"):
            waits.touch()

    with ThreadPoolExecutor(2) as threads:
        pythons = list(threads.map(lambda _: backends.install("tiny", say=say), range(2)))
    assert pythons[0] == pythons[1]
    assert log.read_text().splitlines() == ["venv --quiet", "pip install"]
    assert any(line.startswith("waiting for another installation") for line in said)


def test_another_version_is_not_ok(cache, uv):
    uv(version="0.9")
    with pytest.raises(EHError, match=r"0\.9 instead of tinydist 1\.0"):
        backends.install("tiny", say=quiet)
    state = backends.check("tiny")
    assert (state.ok, state.fix) == (False, "python -m envs install tiny --force")


@pytest.mark.parametrize(
    ("script", "detail"),
    [("exit 3", "packages"), (None, "interpreter")],
)
def test_a_broken_interpreter_is_not_ok(cache, uv, script, detail):
    uv()
    python = backends.install("tiny", say=quiet)
    python.unlink()
    python.write_text(f"#!/bin/sh\n{script}\n" if script else "not a program")
    python.chmod(0o755)
    state = backends.check("tiny")
    assert not state.ok
    assert detail in state.detail


def test_without_uv_it_uses_venv_and_pip(cache, tmp_path, monkeypatch):
    """The real thing, from a wheel made here; pip itself is gone afterwards."""
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
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    python = backends.install("tiny", say=quiet)
    asks = "import tinydist, importlib.util as u, json; print(json.dumps([tinydist.x, u.find_spec('pip') is None]))"
    assert json.loads(subprocess.check_output([str(python), "-I", "-c", asks])) == [1, True]


def new(uv, monkeypatch, **options):
    """A backend that needs more than packages; returns uv's log."""
    monkeypatch.setattr(backends, "BACKENDS", {"tiny": backends.Backend("tiny", "1.0", {"tinydist": "1.0"}, **options)})
    return uv()


def test_the_finishing_script_runs_in_the_new_virtualenv_away_from_the_users_home(cache, uv, monkeypatch, tmp_path):
    home = tmp_path / "user"
    home.mkdir()
    for name in ("HOME", "IPYTHONDIR", "APPWORLD_ROOT", "PYTHONPATH", "PIP_CONSTRAINT", "UV_CONSTRAINT"):
        monkeypatch.setenv(name, str(home))
    script = tmp_path / "finish.py"
    script.write_text(
        "import json, os, sys\n"
        "open(os.path.expanduser('~/left'), 'w').close()\n"
        "json.dump([sys.prefix, os.getcwd(), sys.path, dict(os.environ)], open('told', 'w'))\n"
    )
    new(uv, monkeypatch, finish=script)
    python = backends.install("tiny", say=quiet)
    venv = backends.venv_dir(backends.BACKENDS["tiny"])
    prefix, cwd, path, environment = json.loads((venv / "told").read_text())
    assert prefix == cwd == str(venv) == str(python.parent.parent)
    assert not [entry for entry in path if str(home) in entry or entry == str(tmp_path)]
    assert not [name for name, value in environment.items() if str(home) in value]
    assert environment["PYTHON_DOTENV_DISABLED"] == "1"
    assert not list(home.iterdir())
    assert not Path(environment["HOME"]).exists()


def test_a_backend_for_a_newer_python_needs_uv(cache, uv, monkeypatch):
    log = new(uv, monkeypatch, python=(99, 1))
    backends.install("tiny", say=quiet)
    assert "venv --quiet --python 99.1 " in log.with_suffix(".all").read_text()
    assert backends.venv_dir(backends.BACKENDS["tiny"]).name.endswith("p991")
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"Python 99\.1.*install uv"):
        backends.install("tiny", force=True, say=quiet)


def test_a_cache_without_permission_to_look_into_it_is_refused(cache, monkeypatch):
    stat = os.stat

    def refuse(path, **options):
        if str(path) == f"{cache}/.":
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(ConfigError, match=r"another user.*EH_CACHE_DIR"):
        backends.backend_python("tiny")


def test_a_cache_that_cannot_be_made_is_refused(cache):
    cache.touch()
    with pytest.raises(ConfigError, match=r"Not a directory.*EH_CACHE_DIR"):
        backends.install("tiny", say=quiet)


def test_a_failed_rebuilding_keeps_the_virtualenv_that_works(cache, uv):
    uv()
    backends.install("tiny", say=quiet)
    uv(fail=True)
    with pytest.raises(EHError, match="no route to host"):
        backends.install("tiny", force=True, say=quiet)
    assert backends.check("tiny").ok


def test_a_killed_rebuilding_gives_the_virtualenv_back_that_works(cache, uv):
    log = uv()
    backends.install("tiny", say=quiet)
    path = backends.venv_dir(TINY)
    path.rename(path.with_name(f".{path.name}.old"))
    path.mkdir()
    backends.install("tiny", say=quiet)
    assert len(log.read_text().splitlines()) == 2
    assert [p.name for p in path.parent.iterdir() if p.name != f".{path.name}.lock"] == [path.name]


def test_a_busy_machine_is_no_reason_to_build_again(cache, uv, monkeypatch):
    log = uv()
    python = backends.install("tiny", say=quiet)
    python.unlink()
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(backends, "_CHECK_TIMEOUT_S", 0.1)
    with pytest.raises(EHError, match=r"0\.1 s.*--force$"):
        backends.install("tiny", say=quiet)
    assert len(log.read_text().splitlines()) == 2
