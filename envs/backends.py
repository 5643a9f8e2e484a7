"""Builds and finds the virtualenvs in which backends run.

Each backend has its own, because packages conflict. A marker file, written last, lists its packages. A folder without
the marker, or with other packages, is built again.
"""

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from eh_gym.errors import ConfigError, EHError, MissingBackendError
from envs.cache import cache_dir
from envs.commands import held, run
from envs.description import Backend, descriptions

_MARKER = ".complete"


def read_pins(path: Path) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return dict(line.split("==") for line in lines if line)


def all_backends() -> dict[str, Backend]:
    needed = [about.backend for about in descriptions().values()]
    return {backend.name: backend for backend in needed if backend}


def get_backend(name: str) -> Backend:
    known = all_backends()
    if name not in known:
        raise ConfigError(f"there is no backend {name!r}; choose from {', '.join(known)}")
    return known[name]


def venv_dir(backend: Backend) -> Path:
    tag = f"{sys.implementation.name[:2]}{sys.version_info[0]}{sys.version_info[1]}"
    return cache_dir() / "backends" / f"{backend.name}-{backend.version}-{tag}"


def pins(backend: Backend) -> str:
    listed = [f"{name} {version}" for name, version in backend.requirements.items()]
    return ", ".join(listed) if len(listed) < 4 else f"{listed[0]} and {len(listed) - 1} pinned packages"


def backend_python(name: str) -> Path:
    backend = get_backend(name)
    python, marker = venv_dir(backend) / "bin" / "python", venv_dir(backend) / _MARKER
    if not python.exists() or not marker.is_file() or marker.read_text(encoding="utf-8") != _marked(backend):
        raise MissingBackendError(
            f"the backend {name!r} ({pins(backend)}) is not installed for Python {_dotted(sys.version_info[:2])} "
            f"in {cache_dir()}; run: python -m envs install {name}"
        )
    return python


def install(name: str, *, force: bool = False, say: Callable[[str], None] = print) -> Path:
    """Builds the backend's virtualenv with venv and pip, unless it is there and not `force`. Returns its interpreter.

    Two processes may call this at once: the second waits for the first. `say` gets a line for each thing done.
    """
    backend = get_backend(name)
    if sys.version_info[:2] < backend.python:
        raise ConfigError(
            f"{name} {backend.version} needs Python {_dotted(backend.python)} or newer, this is "
            f"{_dotted(sys.version_info[:2])}; install this project with a newer Python"
        )
    path = venv_dir(backend)
    with locked(name, say):
        if not force:
            with contextlib.suppress(MissingBackendError):
                python = backend_python(name)
                say(f"{name}: {pins(backend)} is installed in {path}")
                return python
        say(f"{name}: installing {pins(backend)} into {path}")
        try:
            (path / _MARKER).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
            _build(backend, path)
            (path / _MARKER).write_text(_marked(backend), encoding="utf-8")
        except OSError as error:
            raise EHError(
                f"{name} can't be installed in {path} ({error}); free some space, make the folder writable, or set "
                "EH_CACHE_DIR to another folder"
            ) from error
    say(f"{name}: done")
    return backend_python(name)


def _build(backend: Backend, path: Path) -> None:
    python = str(path / "bin" / "python")
    wanted = [f"{name}=={version}" for name, version in backend.requirements.items()]
    hint = "this Python cannot make virtualenvs; on Debian and Ubuntu, install the package python3-venv"
    run([sys.executable, "-m", "venv", str(path)], hint=hint)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    run([*pip, *wanted])
    compile_all = "import compileall, sys; compileall.compile_dir(sys.argv[1], quiet=2, workers=0)"  # on all cores
    run([python, "-c", compile_all, str(path / "lib")])
    if backend.finish is not None:
        with tempfile.TemporaryDirectory(prefix="eh-install-") as home:
            run([python, "-I", "-B", str(backend.finish)], hint="please report this", cwd=path, home=Path(home))


@contextlib.contextmanager
def locked(name: str, say: Callable[[str], None] = print) -> Iterator[None]:
    """A lock for the installation of a backend and its data. It is not reentrant."""
    path = venv_dir(get_backend(name))
    with held(path.with_name(f".{path.name}.lock"), say):
        yield


def _marked(backend: Backend) -> str:
    return json.dumps(dict(backend.requirements)) + "\n"


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
