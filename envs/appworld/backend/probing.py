"""Tries in short-lived processes what confine.py should prevent. It is a worker's backend for ``python -m envs doctor``.

A layer is in force if ``confine`` names it and it stops every attempt. Limits that take long to test, such as the one on
processor time, are not tried.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import confine

_MEMORY = 64 << 20


@dataclass(frozen=True)
class _Host:
    """Facts about the parent process that the attempts of a confined process need."""

    scratch: str
    uid: int
    pid: int
    network: str | None


def handle(method: str, params: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    """Answers the worker protocol: ``probe`` tries each layer.

    Returns:
        Layer -> (whether it is in force on this host, what is possible without it).
    """
    if method != "probe":
        raise ValueError(f"unknown method {method!r}")
    with tempfile.TemporaryDirectory(prefix="eh-probe-") as scratch:
        os.chmod(scratch, 0o777)  # so that the folder's mode does not keep a world from writing
        host = _Host(scratch, os.getuid(), os.getpid(), _network())
        confine.isolate_host()
        found = {}
        for layer, (absence, attempts) in _LAYERS.items():
            outcomes = [_try(host, attempt) for attempt in attempts]
            found[layer] = (all(layer in named and stopped for named, stopped in outcomes), absence)
        return found


def _try(host: _Host, attempt: Callable[[_Host], bool | None]) -> tuple[list[str], bool]:
    """Makes an attempt in a confined process.

    Returns:
        The layers that ``confine`` names, and whether the attempt was stopped: it raised, ended the process or
        returned False.
    """
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
    mmap.mmap(-1, 2 * _MEMORY)  # the heap may hold free memory, which no limit counts again


def _raise_a_limit(host: _Host) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _be_the_hosts_user(host: _Host) -> bool:
    return os.getuid() == host.uid


def _be_in_the_hosts_network(host: _Host) -> bool:
    return _network() == host.network


def _make_a_socket(host: _Host) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def _fork(host: _Host) -> None:
    if os.fork() == 0:
        os._exit(0)


def _execute(host: _Host) -> None:
    os.execv("/bin/true", ["true"])


def _signal(host: _Host) -> None:
    os.kill(host.pid, 0)


def _trace(host: _Host) -> bool:
    attach = 16
    return bool(ctypes.CDLL(None).ptrace(attach, host.pid, None, None) == 0)


def _read_a_file(host: _Host) -> None:
    with open("/etc/passwd", "rb") as file:
        file.read()


def _write_a_file(host: _Host) -> None:
    with open(os.path.join(host.scratch, "file"), "wb"):
        pass


# layer -> (what is possible without it, what it should stop)
_LAYERS: dict[str, tuple[str, tuple[Callable[[_Host], bool | None], ...]]] = {
    "limits": ("an episode's code can take all memory and processor time", (_take_memory, _raise_a_limit)),
    "user": ("an episode's code runs as this user; only the other layers confine it", (_be_the_hosts_user,)),
    "network": ("only the system-call filter closes the network", (_be_in_the_hosts_network,)),
    "system calls": (
        "an episode's code can start processes, signal this user's processes, and use the network if it has one",
        (_make_a_socket, _fork, _execute, _signal, _trace),
    ),
    "files": ("an episode's code can read and write all files that its user may", (_read_a_file, _write_a_file)),
}
