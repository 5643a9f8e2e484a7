import json
import os
import stat
import subprocess
import sys
import textwrap
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eh_gym.errors import ConfigError, EHError, MissingBackendError
from envs import runtime

ROOT = Path(runtime.__file__).parents[1]
TINY = runtime.Backend("tiny", "1.0", {"tinydist": "1.0"})

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
    monkeypatch.setattr(runtime, "BACKENDS", {"tiny": TINY})
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
    python = runtime.install("tiny", say=said.append)
    assert python == runtime.backend_python("tiny")
    assert cache in python.parents
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}" if sys.implementation.name == "cpython" else ""
    assert tag in runtime.venv_dir(TINY).name
    assert str(runtime.venv_dir(TINY)) in said[0]
    runtime.install("tiny", say=said.append)
    assert str(runtime.venv_dir(TINY)) in said[-1]
    assert log.read_text().splitlines() == ["venv --quiet", "pip install"]


def test_an_interrupted_installation_is_seen_and_rebuilt(cache, uv):
    log = uv()
    runtime.install("tiny", say=quiet)
    (runtime.venv_dir(TINY) / ".complete").unlink()
    with pytest.raises(MissingBackendError, match=r"tinydist 1\.0.*python -m envs install tiny$"):
        runtime.backend_python("tiny")
    state = runtime.check("tiny")
    assert (state.ok, state.fix) == (False, "python -m envs install tiny")
    assert "interrupted" in state.detail
    runtime.install("tiny", say=quiet)
    assert runtime.check("tiny").ok
    assert len(log.read_text().splitlines()) == 4


def test_a_failed_installation_leaves_nothing_and_says_why(cache, uv):
    uv(fail=True)
    with pytest.raises(EHError, match="no route to host"):
        runtime.install("tiny", say=quiet)
    assert not runtime.venv_dir(TINY).exists()
    assert runtime.check("tiny").detail == "not installed"


def test_two_installations_at_once_build_once(cache, uv, tmp_path):
    waits = tmp_path / "waits"
    log, said = uv(until=str(waits)), []  # the first is not done before the second waits for it

    def say(line):
        said.append(line)
        if line.startswith("waiting"):
            waits.touch()

    with ThreadPoolExecutor(2) as threads:
        pythons = list(threads.map(lambda _: runtime.install("tiny", say=say), range(2)))
    assert pythons[0] == pythons[1]
    assert log.read_text().splitlines() == ["venv --quiet", "pip install"]
    assert any(line.startswith("waiting for another installation") for line in said)


def test_another_version_is_not_ok(cache, uv):
    uv(version="0.9")
    with pytest.raises(EHError, match=r"0\.9 instead of tinydist 1\.0"):
        runtime.install("tiny", say=quiet)
    state = runtime.check("tiny")
    assert (state.ok, state.fix) == (False, "python -m envs install tiny --force")


@pytest.mark.parametrize(
    ("script", "detail"),
    [("exit 3", "packages"), (None, "interpreter")],
)
def test_a_broken_interpreter_is_not_ok(cache, uv, script, detail):
    uv()
    python = runtime.install("tiny", say=quiet)
    python.unlink()
    python.write_text(f"#!/bin/sh\n{script}\n" if script else "not a program")
    python.chmod(0o755)
    state = runtime.check("tiny")
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
    monkeypatch.setattr(runtime.shutil, "which", lambda name: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    python = runtime.install("tiny", say=quiet)
    asks = "import tinydist, importlib.util as u, json; print(json.dumps([tinydist.x, u.find_spec('pip') is None]))"
    assert json.loads(subprocess.check_output([str(python), "-I", "-c", asks])) == [1, True]


def new(uv, monkeypatch, **options):
    """A backend that needs more than packages; returns uv's log."""
    monkeypatch.setattr(runtime, "BACKENDS", {"tiny": runtime.Backend("tiny", "1.0", {"tinydist": "1.0"}, **options)})
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
    python = runtime.install("tiny", say=quiet)
    venv = runtime.venv_dir(runtime.BACKENDS["tiny"])
    prefix, cwd, path, environment = json.loads((venv / "told").read_text())
    assert prefix == cwd == str(venv) == str(python.parent.parent)
    assert not [entry for entry in path if str(home) in entry or entry == str(tmp_path)]
    assert not [name for name, value in environment.items() if str(home) in value]
    assert environment["PYTHON_DOTENV_DISABLED"] == "1"
    assert not list(home.iterdir())
    assert not Path(environment["HOME"]).exists()


def test_a_backend_for_a_newer_python_needs_uv(cache, uv, monkeypatch):
    log = new(uv, monkeypatch, python=(99, 1))
    runtime.install("tiny", say=quiet)
    assert "venv --quiet --python 99.1 " in log.with_suffix(".all").read_text()
    assert runtime.venv_dir(runtime.BACKENDS["tiny"]).name.endswith("p991")
    monkeypatch.setattr(runtime.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"Python 99\.1.*install uv"):
        runtime.install("tiny", force=True, say=quiet)


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({"EH_CACHE_DIR": "/a/b"}, "linux", "/a/b"),
        ({"EH_CACHE_DIR": "~/b"}, "linux", "/home/me/b"),
        ({"XDG_CACHE_HOME": "/x"}, "linux", "/x/elastic-horizon"),
        ({}, "linux", "/home/me/.cache/elastic-horizon"),
        ({}, "darwin", "/home/me/Library/Caches/elastic-horizon"),
    ],
)
def test_where_the_cache_is(monkeypatch, environment, platform, expected):
    for name in ("EH_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(runtime.sys, "platform", platform)
    assert runtime.cache_dir() == Path(expected)


def test_a_home_folder_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("EH_CACHE_DIR", "~nobody-at-all/cache")
    with pytest.raises(ConfigError, match=r"~nobody-at-all/cache.*EH_CACHE_DIR"):
        runtime.cache_dir()
    for name in ("EH_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without an entry, and no HOME
    with pytest.raises(ConfigError, match="EH_CACHE_DIR"):
        runtime.cache_dir()


def test_a_cache_without_permission_to_look_into_it_is_refused(cache, monkeypatch):
    stat = os.stat

    def refuse(path, **options):
        if str(path) == f"{cache}/.":
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(ConfigError, match=r"another user.*EH_CACHE_DIR"):
        runtime.backend_python("tiny")


def test_a_cache_that_cannot_be_made_is_refused(cache):
    cache.touch()
    with pytest.raises(ConfigError, match=r"Not a directory.*EH_CACHE_DIR"):
        runtime.install("tiny", say=quiet)


def test_a_failed_rebuilding_keeps_the_virtualenv_that_works(cache, uv):
    uv()
    runtime.install("tiny", say=quiet)
    uv(fail=True)
    with pytest.raises(EHError, match="no route to host"):
        runtime.install("tiny", force=True, say=quiet)
    assert runtime.check("tiny").ok


def test_a_killed_rebuilding_gives_the_virtualenv_back_that_works(cache, uv):
    log = uv()
    runtime.install("tiny", say=quiet)
    path = runtime.venv_dir(TINY)
    path.rename(path.with_name(f".{path.name}.old"))
    path.mkdir()
    runtime.install("tiny", say=quiet)
    assert len(log.read_text().splitlines()) == 2
    assert [p.name for p in path.parent.iterdir() if p.name != f".{path.name}.lock"] == [path.name]


def test_a_busy_machine_is_no_reason_to_build_again(cache, uv, monkeypatch):
    log = uv()
    python = runtime.install("tiny", say=quiet)
    python.unlink()
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(runtime, "_CHECK_TIMEOUT_S", 0.1)
    with pytest.raises(EHError, match=r"0\.1 s.*--force$"):
        runtime.install("tiny", say=quiet)
    assert len(log.read_text().splitlines()) == 2


def test_the_lock_lives_as_long_as_what_a_killed_installation_has_started(tmp_path):
    code = """
import pathlib
from envs import runtime
with runtime.held(pathlib.Path("lock")):
    runtime.run(["sh", "-c", "touch began; while [ ! -e go ]; do sleep 0.01; done"])
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    waits = []
    with runtime.held(tmp_path / "lock", say=lambda line: waits.append(line) or (tmp_path / "go").touch()):
        assert len(waits) == 1
