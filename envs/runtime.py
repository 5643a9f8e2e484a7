"""Builds, pins and finds the virtualenvs in which backends run.

Left out: sharing a virtualenv with the project. The backends' packages cannot live beside each other's or a trainer's
(bfcl-eval pins numpy and filelock, AppWorld needs pydantic 1), so each has its own, in the user's cache.

A virtualenv cannot be moved, so it is built where it will stay, and a marker file written last says that it is whole:
a folder without the marker is an interrupted installation and is rebuilt.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eh_gym.errors import ConfigError, EHError, MissingBackendError

__all__ = ["BACKENDS", "Backend", "BackendState", "backend_python", "cache_dir", "check", "install", "venv_dir"]

_MARKER = ".complete"
_COMMAND_TIMEOUT_S = 1800.0  # for one command of an installation, on a slow network


@dataclass(frozen=True)
class Backend:
    """What a backend's virtualenv must hold.

    Attributes:
        name: As in ``python -m envs install NAME``.
        version: Of the first requirement; part of the folder's name.
        requirements: Distribution -> exact version. Installed without their dependencies.
    """

    name: str
    version: str
    requirements: Mapping[str, str] = field(hash=False)


BACKENDS: Mapping[str, Backend] = {
    # Simulators, checker and data need nothing but mpmath; with its declared dependencies it takes 6.4 GB.
    "bfcl": Backend("bfcl", "2026.3.23", {"bfcl-eval": "2026.3.23", "mpmath": "1.3.0"}),
}
_LATER = {"appworld": "AppWorld is not part of this release; its installation comes with EH-AppWorld-v0"}


@dataclass(frozen=True)
class BackendState:
    """What ``check`` found.

    Attributes:
        backend: The backend asked for.
        ok: Whether it can be used.
        detail: The versions found, or what is wrong.
        mend: The command that mends it; empty when ``ok``.
        path: The virtualenv's folder, there or not.
    """

    backend: Backend
    ok: bool
    detail: str
    mend: str
    path: Path


def cache_dir() -> Path:
    """The folder for everything that can be built again.

    EH_CACHE_DIR if set, else ``elastic-horizon`` in XDG_CACHE_HOME, else in the platform's cache folder (~/.cache,
    ~/Library/Caches, %LOCALAPPDATA%).
    """
    if os.environ.get("EH_CACHE_DIR"):
        return Path(os.environ["EH_CACHE_DIR"]).expanduser().resolve()
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
    else:
        base = Path.home() / ".cache"
    return base.expanduser().resolve() / "elastic-horizon"


def get_backend(name: str) -> Backend:
    """The backend called ``name``.

    Raises:
        ConfigError: There is none, or not yet.
    """
    if name in _LATER:
        raise ConfigError(_LATER[name])
    if name not in BACKENDS:
        raise ConfigError(f"there is no backend {name!r}; choose from {', '.join(BACKENDS)}")
    return BACKENDS[name]


def venv_dir(backend: Backend) -> Path:
    """Where the backend's virtualenv for this Python stands, or would stand."""
    tag = f"{sys.implementation.name[:2]}{sys.version_info[0]}{sys.version_info[1]}"
    return cache_dir() / "backends" / f"{backend.name}-{backend.version}-{tag}"


def backend_python(name: str) -> Path:
    """The interpreter of an installed backend. Looks for two files only; ``check`` looks closer.

    Raises:
        MissingBackendError: It is not installed for this Python.
        ConfigError: There is no such backend.
    """
    backend = get_backend(name)
    python = _python(venv_dir(backend))
    if not (venv_dir(backend) / _MARKER).is_file() or not python.exists():
        raise MissingBackendError(
            f"the backend {name!r} ({_wanted(backend)}) is not installed for Python {sys.version_info[0]}."
            f"{sys.version_info[1]} in {cache_dir()}; run: python -m envs install {name}"
        )
    return python


def check(name: str) -> BackendState:
    """Whether a backend is installed, its interpreter runs, and its packages have the pinned versions."""
    backend, mend = get_backend(name), f"python -m envs install {name}"
    path = venv_dir(backend)
    try:
        python = backend_python(name)
    except MissingBackendError:
        detail = "its installation was interrupted" if path.exists() else "not installed"
        return BackendState(backend, False, detail, mend, path)
    mend += " --force"
    asks = "import importlib.metadata as m, json, sys; print(json.dumps([m.version(n) for n in sys.argv[1:]]))"
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", asks, *backend.requirements], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return BackendState(backend, False, f"its interpreter does not run: {error}", mend, path)
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        return BackendState(backend, False, f"its packages are not there: {last}", mend, path)
    found = dict(zip(backend.requirements, json.loads(answer.stdout), strict=True))
    if found != dict(backend.requirements):
        listed = ", ".join(f"{name} {version}" for name, version in found.items())
        return BackendState(backend, False, f"holds {listed} instead of {_wanted(backend)}", mend, path)
    return BackendState(backend, True, _wanted(backend), "", path)


def install(name: str, *, force: bool = False, say: Callable[[str], None] = print) -> Path:
    """Builds the backend's virtualenv, unless it is there; with uv where there is one, else with venv and pip.

    Safe to run twice at once: the second waits for the first and finds its work done.

    Args:
        name: The backend.
        force: Build it again.
        say: Gets a line per thing done.

    Returns:
        Its interpreter.

    Raises:
        EHError: A command failed; the message holds its output.
        ConfigError: There is no such backend.
    """
    backend = get_backend(name)
    path = venv_dir(backend)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path.with_name(f".{path.name}.lock"), say):
        if not force and check(name).ok:
            say(f"{name}: {_wanted(backend)} is installed in {path}")
            return backend_python(name)
        if path.exists():
            say(f"{name}: removing {path}")
            (path / _MARKER).unlink(missing_ok=True)
            shutil.rmtree(path)
        say(f"{name}: installing {_wanted(backend)} into {path}")
        try:
            _build(backend, path)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        (path / _MARKER).write_text(json.dumps(dict(backend.requirements)) + "\n", encoding="utf-8")
    state = check(name)
    if not state.ok:
        raise EHError(f"{name} was installed, but {state.detail}; please report this")
    say(f"{name}: done")
    return backend_python(name)


def _build(backend: Backend, path: Path) -> None:
    pins = [f"{name}=={version}" for name, version in backend.requirements.items()]
    python = str(_python(path))
    uv = shutil.which("uv")
    if uv is not None:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(path)])
        _run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *pins])
        return
    _run(
        [sys.executable, "-m", "venv", str(path)],
        hint="Python cannot make virtualenvs here; install uv (https://docs.astral.sh/uv/), "
        "or on Debian and Ubuntu the package python3-venv",
    )
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *pins])
    # Half of the folder is pip itself (and setuptools, up to Python 3.11), which nobody needs any more.
    _run([python, "-m", "pip", "uninstall", "--quiet", "--disable-pip-version-check", "--yes", "setuptools", "pip"])


def _run(command: list[str], hint: str = "check the network and the package index settings, then run it again") -> None:
    # The caller may itself run in a virtualenv or with PYTHONPATH set; neither may leak into the new one.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            timeout=_COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EHError(f"{' '.join(command)} failed: {error}; {hint}") from error
    if done.returncode != 0:
        raise EHError(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout[-4000:]}\n{hint}")


@contextlib.contextmanager
def _lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Held by one process at a time; the system frees it when that process ends, however it ends."""
    try:
        import fcntl
    except ImportError as error:
        raise ConfigError("backends run in worker processes, which need Linux or macOS; on Windows, use WSL") from error
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another installation ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


def _wanted(backend: Backend) -> str:
    return ", ".join(f"{name} {version}" for name, version in backend.requirements.items())
