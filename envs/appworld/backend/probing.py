"""Tries in short-lived processes what confine.py should prevent, for ``python -m envs doctor``.

A layer is in force if ``confine`` names it and it stops one attempt.
"""

import json
import mmap
import os
import tempfile
from collections.abc import Callable
from typing import Any

from . import confine

_MEMORY = 64 << 20
_Attempt = Callable[[], bool]


def handle(method: str, params: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    """Answers ``probe`` of the worker protocol: layer -> (whether it is in force, what is possible without it)."""
    if method != "probe":
        raise ValueError(f"unknown method {method!r}")
    with tempfile.TemporaryDirectory(prefix="eh-probe-") as scratch:
        os.chmod(scratch, 0o777)
        attempts = _attempts(scratch)
        confine.isolate_host()
        return {layer: (_stopped(layer, attempt), absence) for layer, (absence, attempt) in attempts.items()}


def _stopped(layer: str, attempt: _Attempt) -> bool:
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        stopped = True
        try:
            layers = confine.confine(0, confine.Limits(memory_bytes=_MEMORY), ())
            os.write(tell, json.dumps(layers).encode())
            stopped = not attempt()
        finally:
            os._exit(0 if stopped else 1)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        named = json.loads(pipe.read() or "[]")
    _, ended = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(ended) != 1 and layer in named


def _attempts(scratch: str) -> dict[str, tuple[str, _Attempt]]:
    """Layer -> what is possible without it, and an attempt that it should stop: it raises or returns False then."""
    uid, network, link = os.getuid(), _network(), os.path.join(scratch, "link")
    os.symlink("nowhere", link)
    os.utime(link, (1, 1), follow_symlinks=False)

    def leave_an_access_time() -> bool:
        os.readlink(link)
        return os.lstat(link).st_atime != 1

    def fork() -> bool:
        if os.fork() == 0:
            os._exit(0)
        return True

    return {
        "limits": (
            "an episode's code can take all memory and processor time",
            lambda: len(mmap.mmap(-1, 2 * _MEMORY)) > 0,  # the heap may hold free memory
        ),
        "user": ("an episode's code runs as this user; only the other layers confine it", lambda: os.getuid() == uid),
        "network": ("only the system-call filter closes the network", lambda: _network() == network),
        "mounts": (
            "an episode's code can leave marks for later ones: a file that it reads has a new access time",
            leave_an_access_time,
        ),
        "system calls": (
            "an episode's code can start processes, signal this user's processes, and use the network if it has one",
            fork,
        ),
        "files": (
            "an episode's code can read and write all files that its user may",
            lambda: os.open("/etc/passwd", os.O_RDONLY) >= 0,
        ),
    }


def _network() -> str | None:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return None
