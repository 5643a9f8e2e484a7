"""Tries in short-lived processes what confine.py should prevent, for ``python -m envs doctor``.

A layer is in force if ``confine`` names it and it stops one attempt.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import confine

_MEMORY = 64 << 20


@dataclass(frozen=True)
class _Host:
    """What the attempts need to know about the parent process."""

    scratch: str
    uid: int
    pid: int
    network: str | None


def handle(method: str, params: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    """Answers ``probe`` of the worker protocol, which tries each layer.

    Returns:
        Layer -> (whether it is in force on this host, what is possible without it).
    """
    if method != "probe":
        raise ValueError(f"unknown method {method!r}")
    with tempfile.TemporaryDirectory(prefix="eh-probe-") as scratch:
        link = os.path.join(scratch, "link")
        os.symlink("nowhere", link)
        os.utime(link, (1, 1), follow_symlinks=False)
        os.chmod(scratch, 0o777)
        host = _Host(scratch, os.getuid(), os.getpid(), _network())
        confine.isolate_host()
        layers = {}
        for layer, (absence, attempt) in _LAYERS.items():
            named, stopped = _try(host, attempt)
            layers[layer] = (layer in named and stopped, absence)
        return layers


def _try(host: _Host, attempt: Callable[[_Host], bool | None]) -> tuple[list[str], bool]:
    """Makes an attempt in a confined process. Returns the layers that ``confine`` names, and whether it was stopped."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            limits = confine.Limits(memory_bytes=_MEMORY)
            named = confine.confine(0, host.scratch, limits, (), parent=host.pid)
            os.write(tell, json.dumps(named).encode())
            status = 1 if attempt(host) is False else 0
        except (OSError, MemoryError, ValueError):
            pass
        finally:
            os._exit(status)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        named_layers = json.loads(pipe.read() or "[]")
    _, ended = os.waitpid(pid, 0)
    return named_layers, ended != 0


def _network() -> str | None:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return None


def _take_memory(host: _Host) -> None:
    mmap.mmap(-1, 2 * _MEMORY)  # the heap may hold free memory


def _be_the_hosts_user(host: _Host) -> bool:
    return os.getuid() == host.uid


def _be_in_the_hosts_network(host: _Host) -> bool:
    return _network() == host.network


def _leave_an_access_time(host: _Host) -> bool:
    link = os.path.join(host.scratch, "link")
    before = os.lstat(link).st_atime
    os.readlink(link)
    return os.lstat(link).st_atime != before


def _fork(host: _Host) -> None:
    if os.fork() == 0:
        os._exit(0)


def _read_a_file(host: _Host) -> None:
    with open("/etc/passwd", "rb") as file:
        file.read()


# layer -> (what is possible without it, an attempt that it should stop)
_LAYERS: dict[str, tuple[str, Callable[[_Host], bool | None]]] = {
    "limits": ("an episode's code can take all memory and processor time", _take_memory),
    "user": ("an episode's code runs as this user; only the other layers confine it", _be_the_hosts_user),
    "network": ("only the system-call filter closes the network", _be_in_the_hosts_network),
    "mounts": (
        "an episode's code can leave marks for later ones: a file that it reads has a new access time",
        _leave_an_access_time,
    ),
    "system calls": (
        "an episode's code can start processes, signal this user's processes, and use the network if it has one",
        _fork,
    ),
    "files": ("an episode's code can read and write all files that its user may", _read_a_file),
}
