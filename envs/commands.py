"""Runs the commands of an installation, under a lock that lasts until they have ended."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from eh_gym.errors import ConfigError, EHError
from eh_gym.processes import lock

_CALLERS_OWN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_CONSTRAINT", "PIP_REQUIREMENT")
_COMMAND_TIMEOUT_S = 1800.0  # for one command of an installation over a slow network


def run(
    command: Sequence[str],
    hint: str = "check the network and the package index settings, then run it again",
    cwd: Path | None = None,
    home: Path | None = None,
) -> str:
    """Runs one command of an installation and returns what it printed on both streams.

    The error of a failed command ends with `hint`. The command sees `home` as the user's home.

    Raises:
        EHError: The command could not be started, failed or took too long.
    """
    # The caller's virtualenv, PYTHONPATH or constraints must not leak into the new virtualenv.
    environment = {k: v for k, v in os.environ.items() if k not in _CALLERS_OWN}
    if home is not None:
        folders = ("HOME", "APPWORLD_CACHE", "APPWORLD_ROOT", "IPYTHONDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME")
        environment |= dict.fromkeys((*folders, "XDG_CONFIG_HOME"), str(home)) | {"PYTHON_DOTENV_DISABLED": "1"}
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL if home is not None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env=environment,
            timeout=_COMMAND_TIMEOUT_S,
            close_fds=False,  # if this process is killed, its locks hold until the command has ended, too
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EHError(f"{' '.join(command)} failed: {error}; {hint}") from error
    if done.returncode != 0:
        raise EHError(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout[-4000:]}\n{hint}")
    return done.stdout


@contextlib.contextmanager
def held(path: Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """A lock that one process holds at a time, and the commands that ``run`` starts, until all of them end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise ConfigError(
            f"the lock {path} can't be made ({error.strerror}); set EH_CACHE_DIR to a folder of your own"
        ) from error
    with file:
        try:
            if not lock(file):
                say(f"waiting for another installation ({path})")
                lock(file, wait=True)
        except ImportError as error:
            raise ConfigError(
                "backends run in worker processes, which need Linux or macOS; on Windows, use WSL"
            ) from error
        os.set_inheritable(file.fileno(), True)
        yield
