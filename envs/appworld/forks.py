"""Processes forked from a zygote in AppWorld's virtualenv, and messages to them, with deadlines."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from eh_gym.errors import ConfigError, WorkerCallError, WorkerDied, WorkerError, WorkerProtocolError, WorkerTimeout
from eh_gym.surrogates import escaped
from eh_gym.worker import Worker, backend_command
from envs.appworld.backend import link
from envs.appworld.turns import Step, turns

_START_TIMEOUT_S = 180.0
_SPAWN_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0
# The environment variables that a zygote gets. Agents' code can read them, so keys and tokens are left out.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TZDIR", "TMPDIR", "LD_LIBRARY_PATH")


class Zygote:
    """A process that has imported AppWorld, and the processes forked from it, which outlive it. Thread-safe.

    At every start, `start` returns the zygote's parameters (backend/zygote.py). `told` is its answer.
    """

    def __init__(self, python: Path, start: Callable[[], Mapping[str, Any]]) -> None:
        self._start, self._lock = start, threading.Lock()
        command = backend_command(python, Path(__file__).parent / "backend" / "zygote.py")
        kept = [f"{name}={os.environ[name]}" for name in _ENVIRONMENT if name in os.environ]
        # Sets keep their order between runs, no .pyc is written into the user's data, and threads share a heap.
        fixed = ["PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1", "MALLOC_ARENA_MAX=1"]
        # `env` calls exec, so the worker's process is the zygote itself.
        self._worker = Worker(["env", "-i", *fixed, *kept, *command], start_timeout_s=_START_TIMEOUT_S)
        self._home: _Home  # of the present process
        self._ready = self._closed = False
        self._abandoned: set[str] = set()  # forks that are to be ended
        self.told: Mapping[str, Any] = {}
        self._end: Callable[[], object] = self._worker.kill  # all its forks
        weakref.finalize(self, Worker.kill, self._worker)

    @property
    def alive(self) -> bool:
        return self._ready and self._worker.alive and self._home.socket.exists()

    @property
    def pid(self) -> int | None:
        return self._worker.pid

    def start(self) -> None:
        """Starts the zygote unless it can fork. One that can't is ended and replaced."""
        with self._lock:
            if self._closed:
                raise WorkerDied("the environment's host was closed, as by close_hosts(); make the environment again")
            if self.alive:
                return
            self._ready = False
            self._worker.kill()
            self._abandoned.clear()
            try:
                self._home = _Home()
            except OSError as error:
                raise WorkerDied(f"there can be no zygote: {error}") from error
            self._end = self._home.end
            self._worker.start()
            try:
                self._worker.call("load", {"folder": str(self._home.folder)}, _START_TIMEOUT_S)
                self.told = self._worker.call("start", self._start(), _START_TIMEOUT_S)
            except WorkerError:
                self._worker.kill()
                raise
            self._ready = True

    def fork(self, options: Mapping[str, Any]) -> Fork:
        """Forks a process. ``options`` depend on the zygote's role. Raises WorkerError if the zygote fails."""
        self.start()
        name = secrets.token_hex(16)
        connection = None
        try:
            with self._lock:  # another thread's start() could change the home
                home, connection = self._home, socket.socket(socket.AF_UNIX)
                connection.settimeout(_SPAWN_TIMEOUT_S)
                connection.connect(str(home.socket))
                connection.sendall(name.encode("ascii"))
                abandoned = sorted(self._abandoned)
                request = {"name": name, "options": dict(options), "abandoned": abandoned}
                assert self.pid is not None
                os.kill(self.pid, signal.SIGCONT)  # if somebody has stopped it
                pid = self._worker.call("spawn", request, _SPAWN_TIMEOUT_S)
                self._abandoned.difference_update(abandoned)
            return Fork(self, home, connection, name, pid)
        except BaseException as error:
            if connection is not None:
                connection.close()
            self._abandoned.add(name)  # the zygote may have forked it
            if isinstance(error, OSError):
                raise WorkerDied(f"the zygote does not answer: {error}") from error
            raise

    def abandon(self, name: str) -> None:
        """Marks a process for ``clear`` or the next fork to kill. Takes no lock: a finalizer may call it."""
        self._abandoned.add(name)

    def clear(self) -> None:
        abandoned = sorted(self._abandoned)
        with contextlib.suppress(WorkerError):  # its guard knows them
            self._worker.call("end", {"names": abandoned}, _END_TIMEOUT_S)
        self._abandoned.difference_update(abandoned)

    def close(self) -> None:
        self._closed = True
        while not self._lock.acquire(timeout=0.1):
            self._worker.kill()  # makes a start in progress fail
        try:
            self._worker.kill()
            self._end()
        finally:
            self._lock.release()


class Unread(WorkerDied):
    """The process ended before it had read all of a message. Only Linux reports this."""


class Fork:
    """The parent's side of a forked process. Only one thread at a time may use it."""

    def __init__(self, zygote: Zygote, home: object, connection: socket.socket, name: str, pid: int) -> None:
        self._zygote, self._home, self._connection, self._name, self.pid = zygote, home, connection, name, pid
        self._handle = _handle(pid)
        self._ended = False
        self._finalizer = weakref.finalize(self, zygote.abandon, name)
        self._finalizer.atexit = False

    def give(self, other: Fork) -> None:
        try:
            link.give(self._connection, other._connection)
        except OSError as error:
            raise WorkerDied(f"the process has gone away: {error}") from error

    def ask(
        self, message: Mapping[str, Any] | None = None, *, timeout_s: float = _END_TIMEOUT_S, step: Step | None = None
    ) -> dict[str, Any]:
        """Sends a message, if any, and returns the answer. Any error kills the process.

        The answer of a step, which has a timeout of its own, must be complete `timeout_s` after it has begun.
        """
        if self._ended:
            raise WorkerDied("the process was ended")
        turns().used(self)
        try:
            return self._answer(message, timeout_s, step)
        except BaseException:  # a late answer would be taken for the next one
            self.end()
            raise

    def _answer(self, message: Mapping[str, Any] | None, timeout_s: float, step: Step | None) -> dict[str, Any]:
        try:
            read = message is None or self._send(link.frame(dict(message)), timeout_s)
            if step is not None:
                step.wait(self._connection)
            answer = link.receive(self._connection, time.monotonic() + timeout_s)
        except TimeoutError as error:
            waited_s = timeout_s if step is None else step.timeout_s
            raise WorkerTimeout(f"no answer after {waited_s:g} s; the process was killed") from error
        except OSError as error:
            kind = Unread if isinstance(error, ConnectionResetError) else WorkerDied
            raise kind(f"the process has gone away: {error}") from error
        except ValueError as error:
            raise WorkerProtocolError(f"the process sent {escaped(str(error))}") from error
        if answer is None:
            raise WorkerDied("the process has gone away") if read else Unread("the process has gone away")
        head, _ = answer
        if "error" in head:
            raise WorkerCallError(escaped(head["error"]))
        return head

    def _send(self, message: bytes, timeout_s: float) -> bool:
        """Returns False if the process did not take all of the message; there may still be an answer."""
        try:
            self._connection.settimeout(timeout_s)
            self._connection.sendall(message)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def times(self) -> tuple[float, float, float]:
        """The processor seconds of all threads and of the main one, and the seconds for which that waited for one."""
        with contextlib.suppress(OSError, ValueError):  # it has ended, or the system does not tell
            if self._handle is not None:
                cpu_s = time.clock_gettime(~self.pid << 3 | 2)  # as clock_getcpuclockid(3)
                with open(f"/proc/{self.pid}/schedstat") as file:
                    main_s, delay_s, _ = (int(number) / 1e9 for number in file.read().split())
                return cpu_s, main_s, delay_s
        return 0.0, 0.0, 0.0

    def threads(self) -> int:
        with contextlib.suppress(OSError):  # it has ended
            return len(os.listdir(f"/proc/{self.pid}/task"))
        return 1

    def warm_up(self) -> None:
        """Tells the process that it has time to prepare for its first step (backend/apps.py)."""
        with contextlib.suppress(OSError):  # the first step will show that it has ended
            self._connection.sendall(link.frame({"warm_up": True}))

    def end(self) -> None:
        if not self._ended:
            self._connection.close()
            self._zygote.abandon(self._name)
            if not self.signal(signal.SIGKILL):
                self._zygote.clear()
            if self._handle is not None:
                self._handle.close()
            self._ended = True
            self._finalizer.detach()

    def signal(self, number: int) -> bool:
        if self._handle is not None and sys.platform == "linux":
            with contextlib.suppress(OSError, ValueError):  # it has ended, or a container forbids this
                signal.pidfd_send_signal(self._handle.fileno(), number)
                return True
        return False


def _handle(pid: int) -> IO[bytes] | None:
    """A pidfd of the process, which stays right if the id is used again; None on systems without them."""
    if sys.platform != "linux":
        return None
    try:
        return os.fdopen(os.pidfd_open(pid), "rb", buffering=0)
    except OSError:
        return None


class _Home:
    """The folder of a zygote and its forks. They end with it: at its `end`, or when nobody refers to it any more."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="eh-appworld-"))
        self.socket, owner = self.folder / "socket", self.folder / "owner"
        if len(str(self.socket)) > 100:
            self.folder.rmdir()
            raise ConfigError(f"the path {self.socket} is too long; set TMPDIR to a shorter folder such as /tmp")
        os.mkfifo(owner)
        # When this is closed, the guard (backend/children.py) ends all that is left, also if this process is killed.
        pipe = open(os.open(owner, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)  # noqa: SIM115
        self.end: Callable[[], object] = weakref.finalize(self, _end, self.folder, pipe, os.getpid())


def _end(folder: Path, pipe: IO[bytes], owner: int) -> None:
    pipe.close()
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
