"""Builds, checks and finds the virtualenvs in which backends run.

Each backend has a virtualenv of its own in the user's cache, because its packages conflict with those of the other
backends and of a trainer: bfcl-eval pins numpy and filelock, and AppWorld needs pydantic 1.

A virtualenv cannot be moved, so it is built in its final place. A marker file, written last, says that it is complete.
A folder without the marker is an interrupted installation and is rebuilt.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eh_gym.errors import ConfigError, EHError, MissingBackendError
from envs.cache import cache_dir
from envs.commands import held, run

__all__ = [
    "BACKENDS",
    "Backend",
    "BackendState",
    "backend_python",
    "check",
    "install",
    "locked",
    "venv_dir",
]

_MARKER = ".complete"
_CHECK_TIMEOUT_S = 60.0
_APPWORLD = Path(__file__).parent / "appworld"


@dataclass(frozen=True)
class Backend:
    """The contents of a backend's virtualenv.

    Attributes:
        name: The backend's name, as in ``python -m envs install NAME``.
        version: The version of the first requirement. It is part of the folder's name.
        requirements: Distribution -> exact version. They are installed without their dependencies.
        python: The oldest Python that the backend runs on, as (major, minor).
        finish: A script that the new virtualenv's interpreter runs once the packages are installed; None for no script.
    """

    name: str
    version: str
    requirements: Mapping[str, str] = field(hash=False)
    python: tuple[int, int] = (3, 10)
    finish: Path | None = None


def read_pins(path: Path) -> dict[str, str]:
    """Reads a requirements file that holds only comments and ``name==version`` lines. Returns distribution -> version."""
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return dict(line.split("==") for line in lines if line)


BACKENDS: Mapping[str, Backend] = {
    # Simulators, checker and data need mpmath and nothing else. With all its declared dependencies, bfcl-eval takes 6.4 GB.
    "bfcl": Backend("bfcl", "2026.3.23", {"bfcl-eval": "2026.3.23", "mpmath": "1.3.0"}),
    # The package holds the apps as an encrypted bundle, which the script unpacks.
    "appworld": Backend(
        "appworld",
        "0.1.3.post1",
        read_pins(_APPWORLD / "requirements.txt"),
        python=(3, 11),
        finish=_APPWORLD / "backend" / "unpack.py",
    ),
}


@dataclass(frozen=True)
class BackendState:
    """The result of ``check``.

    Attributes:
        ok: Whether it can be used.
        detail: The versions found, or what is wrong.
        fix: The command that fixes it; empty if ``ok``.
        path: The virtualenv's folder, whether it exists or not.
        timed_out: Whether the interpreter did not answer in time. It may still work when the machine is less busy.
    """

    ok: bool
    detail: str
    fix: str
    path: Path
    timed_out: bool = False


def get_backend(name: str) -> Backend:
    """The backend called ``name``.

    Raises:
        ConfigError: There is no such backend.
    """
    if name not in BACKENDS:
        raise ConfigError(f"there is no backend {name!r}; choose from {', '.join(BACKENDS)}")
    return BACKENDS[name]


def venv_dir(backend: Backend) -> Path:
    """The folder of the backend's virtualenv, whether it exists or not.

    It is for this Python, or for the oldest that the backend runs on if this one is older.
    """
    major, minor = _version(backend)
    tag = f"{sys.implementation.name[:2]}{major}{minor}"
    return cache_dir() / "backends" / f"{backend.name}-{backend.version}-{tag}"


def backend_python(name: str) -> Path:
    """The interpreter of an installed backend. This only looks for two files; ``check`` looks closer.

    Raises:
        MissingBackendError: The backend is not installed for this Python.
        ConfigError: There is no such backend.
    """
    backend = get_backend(name)
    python = _python(venv_dir(backend))
    if not (venv_dir(backend) / _MARKER).is_file() or not python.exists():
        raise MissingBackendError(
            f"the backend {name!r} ({_wanted(backend)}) is not installed for Python {_dotted(_version(backend))} "
            f"in {cache_dir()}; run: python -m envs install {name}"
        )
    return python


def check(name: str) -> BackendState:
    """Checks that a backend is installed, that its interpreter runs, and that its packages have the pinned versions."""
    backend, fix = get_backend(name), f"python -m envs install {name}"
    path = venv_dir(backend)
    try:
        python = backend_python(name)
    except MissingBackendError:
        detail = "its installation was interrupted" if path.exists() else "not installed"
        return BackendState(False, detail, fix, path)
    fix += " --force"
    asks = "import importlib.metadata as m, json, sys; print(json.dumps([m.version(n) for n in sys.argv[1:]]))"
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", asks, *backend.requirements],
            capture_output=True,
            text=True,
            timeout=_CHECK_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        detail = f"its interpreter has not answered in {_CHECK_TIMEOUT_S:g} s"
        fix = f"python -m envs doctor {name}, when the machine is less busy; if it says the same, {fix}"
        return BackendState(False, detail, fix, path, timed_out=True)
    except OSError as error:
        return BackendState(False, f"its interpreter does not run: {error}", fix, path)
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        return BackendState(False, f"its packages are not there: {last}", fix, path)
    found = dict(zip(backend.requirements, json.loads(answer.stdout), strict=True))
    other = [name for name, version in backend.requirements.items() if found[name] != version]
    if other:
        listed = ", ".join(f"{name} {found[name]}" for name in other)
        instead = ", ".join(f"{name} {backend.requirements[name]}" for name in other)
        return BackendState(False, f"holds {listed} instead of {instead}", fix, path)
    return BackendState(True, _wanted(backend), "", path)


def install(name: str, *, force: bool = False, say: Callable[[str], None] = print) -> Path:
    """Builds the backend's virtualenv unless it is there, with uv if that is installed, otherwise with venv and pip.

    Two processes may call this at once: the second waits for the first and then finds the work done. A virtualenv that is
    there is set aside, and comes back if the new one can't be built.

    Args:
        name: The backend.
        force: Build it again even if it is there.
        say: Is called with one line for each thing done.

    Returns:
        The backend's interpreter.

    Raises:
        EHError: A command failed (the message holds its output), the folder can't be written to, or without ``force`` the
            virtualenv that is there does not answer in time.
        ConfigError: There is no such backend, or it needs a newer Python and there is no uv to fetch one.
    """
    backend = get_backend(name)
    path = venv_dir(backend)
    old = path.with_name(f".{path.name}.old")
    with locked(name, say):
        try:
            if (path / _MARKER).is_file():
                shutil.rmtree(old, ignore_errors=True)
            else:
                _restore(path, old)  # an installation was killed while it built
            state = None if force else check(name)
            if state and state.ok:
                say(f"{name}: {_wanted(backend)} is installed in {path}")
                return backend_python(name)
            if state and state.timed_out:
                raise EHError(f"{name} is installed, but {state.detail}; run: {state.fix}")
            say(f"{name}: installing {_wanted(backend)} into {path}")
            if path.exists():
                path.rename(old)
            try:
                _build(backend, path)
                (path / _MARKER).write_text(json.dumps(dict(backend.requirements)) + "\n", encoding="utf-8")
            except BaseException:
                _restore(path, old)
                raise
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise EHError(
                f"{name} can't be installed in {path} ({error}); free some space, make the folder writable, or set EH_CACHE_DIR "
                "to another folder"
            ) from error
    state = check(name)
    if not state.ok:
        raise EHError(f"{name} was installed, but {state.detail}; please report this")
    say(f"{name}: done")
    return backend_python(name)


def _restore(path: Path, old: Path) -> None:
    """Removes an unfinished installation, and puts back the virtualenv that was set aside, if there was one."""
    shutil.rmtree(path, ignore_errors=True)
    if old.exists():
        old.rename(path)


def _build(backend: Backend, path: Path) -> None:
    pins = [f"{name}=={version}" for name, version in backend.requirements.items()]
    python = str(_python(path))
    uv = shutil.which("uv")
    too_old = sys.version_info[:2] < backend.python
    if too_old and uv is None:
        raise ConfigError(
            f"{backend.name} {backend.version} needs Python {_dotted(backend.python)} or newer, this is "
            f"{_dotted(sys.version_info[:2])}; use a newer Python, or install uv "
            "(https://docs.astral.sh/uv/), which finds or downloads one"
        )
    if uv is not None:
        run([uv, "venv", "--quiet", "--python", _dotted(backend.python) if too_old else sys.executable, str(path)])
        run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *pins])
    else:
        run(
            [sys.executable, "-m", "venv", str(path)],
            hint="this Python cannot make virtualenvs; install uv (https://docs.astral.sh/uv/), "
            "or on Debian and Ubuntu the package python3-venv",
        )
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *pins])
        # Half of BFCL's folder is pip itself (and setuptools, up to Python 3.11). Nothing needs them any more.
        run([python, "-m", "pip", "uninstall", "--quiet", "--disable-pip-version-check", "--yes", "setuptools", "pip"])
    if backend.finish is not None:
        with tempfile.TemporaryDirectory(prefix="eh-install-") as home:
            run([python, "-I", "-B", str(backend.finish)], hint="please report this", cwd=path, home=Path(home))


@contextlib.contextmanager
def locked(name: str, say: Callable[[str], None] = print) -> Iterator[None]:
    """A lock that only one installation of a backend and its data holds at a time. It is not reentrant."""
    path = venv_dir(get_backend(name))
    with held(path.with_name(f".{path.name}.lock"), say):
        yield


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


def _version(backend: Backend) -> tuple[int, int]:
    return max((sys.version_info[0], sys.version_info[1]), backend.python)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _wanted(backend: Backend) -> str:
    pins = [f"{name} {version}" for name, version in backend.requirements.items()]
    return ", ".join(pins) if len(pins) < 4 else f"{pins[0]} and {len(pins) - 1} pinned packages"
