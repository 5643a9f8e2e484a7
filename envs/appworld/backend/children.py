"""A zygote's children: processes that are forked for one connection each, and known by a name.

An environment connects, sends a name, and then asks for a process with that name. The name keeps a process from getting
the connection of an earlier request that was interrupted.

The children outlive their zygote, but not the trainer: a small process, the guard, kills them when that has ended,
even if somebody has stopped them.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection

from . import confine, link

_ACCEPT_TIMEOUT_S = 10.0  # only prevents a hang
_PATIENCE_MS = 5000  # less than the environment's 10 s
_LONGEST_ERROR = 8000  # characters


class Children:
    """The living processes. The folder has the socket, their working directories, and the pipe of their owner.

    Make it before much is imported, because the guard is a fork, too.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._size, self._rank = folder, 0, confine.rank_file()
        self._living: dict[str, tuple[int, int]] = {}  # name -> pid, slot
        self._killed: set[str] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.path.join(folder, "socket"))
        self._listener.listen(256)
        self._listener.settimeout(_ACCEPT_TIMEOUT_S)
        _guard(folder)

    def begin(self) -> None:
        """Call it before the first spawn, when the zygote has the size that it will keep."""
        self._size = confine.size()
        confine.rank(self._rank, 2 * self._size)

    def spawn(self, name: str, live: Callable[[socket.socket, int], None]) -> int:
        """Forks a process for the connection that sent ``name``, and returns its pid.

        The process calls ``live`` with the connection and a slot, the lowest number that no living process has.
        Exceptions of ``live`` are reported over the connection.
        """
        connection = self._accept(name)
        taken = {slot for _, slot in self._living.values()}
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        try:
            with confine.own_pids():
                pid = os.fork()
                if pid == 0:
                    self._live(connection, slot, live)
        finally:
            connection.close()
        self._living[name] = pid, slot
        return pid

    def end(self, names: Collection[str], *, wait: bool) -> None:
        for name in self._living.keys() & names:
            self._killed.add(name)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._living[name][0], signal.SIGKILL)  # not reaped, so the pid is still its own
        for _ in range(_PATIENCE_MS if wait else 1):
            for name, (pid, slot) in list(self._living.items()):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._living[name]
                    self._killed.discard(name)
                    shutil.rmtree(os.path.join(self._folder, str(slot)), ignore_errors=True)
            if not (wait and self._killed):
                return
            time.sleep(0.001)

    def _accept(self, name: str) -> socket.socket:
        while True:
            connection, _ = self._listener.accept()
            connection.setblocking(False)  # the name was sent before the request, or never
            with contextlib.suppress(OSError):
                if connection.recv(len(name)) == name.encode("ascii"):
                    connection.setblocking(True)
                    return connection
            connection.close()

    def _live(self, connection: socket.socket, slot: int, live: Callable[[socket.socket, int], None]) -> None:
        try:
            os.setpgid(0, 0)  # so that kill(0, ...) does not reach the zygote, and its end not this process
            confine.rank(confine.rank_file(), self._size)
            scratch = os.path.join(self._folder, str(slot))
            os.mkdir(scratch, 0o700)
            os.chdir(scratch)
            confine.keep_only([connection.fileno()])
            sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
            live(connection, slot)
        except Exception as error:
            text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            with contextlib.suppress(Exception):
                connection.sendall(link.frame({"error": text[:_LONGEST_ERROR]}))
        finally:
            os._exit(0)


def _guard(folder: str) -> None:
    """Forks the guard, which ends this process's session and folder when nobody has the pipe open for reading."""
    session = os.getpid()
    if sys.platform != "linux" or os.fork():
        return
    try:
        os.setpgid(0, 0)
        confine.keep_only([])
        poll, pipe = select.poll(), os.open(os.path.join(folder, "owner"), os.O_WRONLY | os.O_NONBLOCK)
        poll.register(pipe, 0)  # of which only POLLERR is waited for
        poll.poll()
        for _ in range(2):  # what was forked meanwhile, too
            for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
                with contextlib.suppress(OSError):
                    if os.getsid(pid) == session and pid != os.getpid():
                        os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)
