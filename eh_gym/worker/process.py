"""Worker: one backend process, called over its stdin and stdout with a deadline for every call.

No call is sent twice, because a call that failed may still have taken effect. It needs POSIX (Linux, macOS, WSL).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from eh_gym.errors import ConfigError, WorkerCallError, WorkerDied, WorkerError, WorkerProtocolError
from eh_gym.worker import child
from eh_gym.worker.frames import PARTING_S, Frames

_KEPT_STDERR = 64 * 1024  # the last bytes of a worker's stderr
_SHOWN_STDERR = 2000  # characters of it in an error message


def backend_command(python: str | Path, backend: str | Path) -> tuple[str, ...]:
    """The command that serves the backend module at ``backend`` with the interpreter ``python``."""
    # -s ignores the user's site-packages; -I would also ignore PYTHONHASHSEED.
    return (str(python), "-s", str(Path(child.__file__).resolve()), str(Path(backend).resolve()))


@dataclass(frozen=True, eq=False)
class _Call:
    number: int
    method: str
    frame: bytes
    timeout_s: float
    # The answer; None if the call's thread must send the waiting calls.
    told: SimpleQueue[dict[str, Any] | WorkerError | None] = field(default_factory=SimpleQueue)


class Worker:
    """One backend process. Thread-safe: calls from several threads are answered one after another.

    One of the waiting threads sends all waiting calls, because waking a process costs as much as a quick step.

    In a forked copy of the process that started it, ``start`` and ``call`` raise WorkerDied, and ``close`` and ``kill``
    do nothing.

    Args:
        command: What to run, usually ``backend_command(python, backend)``.
        start_timeout_s: Seconds until the backend must be loaded, > 0.

    Example:
        >>> import sys, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     backend = Path(folder, "adder.py")
        ...     _ = backend.write_text("def handle(method, params): return params['a'] + params['b']")
        ...     with Worker(backend_command(sys.executable, backend)) as worker:
        ...         worker.call("add", {"a": 2, "b": 3}, timeout_s=30)
        5
    """

    def __init__(self, command: Sequence[str], *, start_timeout_s: float = 60.0) -> None:
        if not hasattr(select, "poll") or not hasattr(os, "killpg"):
            raise ConfigError("backend workers need a POSIX system (Linux, macOS); on Windows, run inside WSL")
        if isinstance(command, str) or not command:
            raise ConfigError(f"command must be a sequence of words, such as backend_command's, got {command!r}")
        if start_timeout_s <= 0:
            raise ConfigError(f"start_timeout_s must be > 0, got {start_timeout_s}")
        self.command = tuple(command)
        self._start_timeout_s = start_timeout_s
        self._lock = threading.Lock()  # its holder may use the pipes
        self._gate = threading.Lock()  # guards the two below
        self._waiting: list[_Call] = []  # not sent yet
        self._leader: _Call | None = None  # there is one whenever calls wait
        self._process: subprocess.Popen[bytes] | None = None
        self._frames: Frames  # of this process
        self._owner = os.getpid()
        self._ids = itertools.count(1)
        self._gone = "it was not started"  # why calls are refused; empty while the worker lives
        self._reaped = False  # if so, the system may reuse its pid
        self._stderr = bytearray()
        self._drain: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process id, None before ``start``."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether a call made now could be answered."""
        process = self._process
        return not self._gone and os.getpid() == self._owner and process is not None and process.poll() is None

    @property
    def stderr(self) -> str:
        """The last 64 KiB of the worker's stderr and prints."""
        return bytes(self._stderr).decode("utf-8", "replace")

    def start(self) -> None:
        """Starts the process, unless it lives, and waits until its backend is loaded.

        Raises:
            WorkerDied: It could not be started, or exited.
            WorkerTimeout: The backend was not loaded after ``start_timeout_s``.
            WorkerProtocolError: It wrote something else than frames.
            WorkerCallError: Loading the backend raised.
        """
        self._refuse_in_a_fork()
        with self._lock:
            if self.alive:
                return
            frames = self._spawn()
            with self._killed_on_failure():
                deadline = time.monotonic() + self._start_timeout_s
                hello = frames.receive(deadline, "the backend to load", self._start_timeout_s)
                if "error" in hello:
                    raise WorkerCallError(f"the backend could not be loaded: {_described(hello['error'])}")
                if hello != child.READY:
                    raise WorkerProtocolError(f"the worker began with {str(hello)[:200]}; run {child.__file__}")

    def call(self, method: str, params: Mapping[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        """Calls ``method`` of the backend and returns its result. The call is sent at most once.

        Args:
            method: Passed to the backend's ``handle``.
            params: JSON-serialisable, at most 64 MiB of it.
            timeout_s: Seconds for the answer, counted from when the worker is free.

        Raises:
            WorkerCallError: The backend raised, or the call or its answer does not fit in a frame. The worker lives on.
            WorkerTimeout: No answer came in time. The worker was killed.
            WorkerProtocolError: Something else came. The worker was killed.
            WorkerDied: The process has ended, or belongs to another process.
        """
        self._refuse_in_a_fork()
        number = next(self._ids)
        try:
            frame = child.encode({"id": number, "method": method, "params": dict(params or {})})
        except (ValueError, TypeError, RecursionError) as error:
            raise WorkerCallError(f"the call {method!r} was not sent: {error}") from error
        call = _Call(number, method, frame, timeout_s)
        try:
            with self._gate:
                self._waiting.append(call)
                self._choose_leader()
            while (told := call.told.get()) is None:
                self._exchange()
        finally:
            with self._gate:
                if call in self._waiting:  # this thread was interrupted
                    self._waiting.remove(call)
                if call is self._leader:
                    self._leader = None
                    self._choose_leader()
        if isinstance(told, WorkerError):
            raise told
        if "error" in told:
            raise WorkerCallError(f"{method!r} raised {_described(told['error'])}")
        return told["result"]

    def _choose_leader(self) -> None:
        if self._leader is None and self._waiting:
            self._leader = self._waiting[0]
            self._leader.told.put(None)

    def _exchange(self) -> None:
        # The worker answers in order, so the first call without an answer failed, and later ones had no effect.
        with self._gate:
            calls, self._waiting = self._waiting, []
        unanswered = deque(calls)
        try:
            with self._lock:
                if not self._gone:
                    with self._killed_on_failure():
                        self._frames.send(b"".join(call.frame for call in calls))
                        while unanswered:
                            call, what = unanswered[0], f"the answer to {unanswered[0].method!r}"
                            answer = self._frames.receive(time.monotonic() + call.timeout_s, what, call.timeout_s)
                            if answer.get("id") != call.number or not ("result" in answer or "error" in answer):
                                raise WorkerProtocolError(
                                    f"the worker answered {str(answer)[:200]} to call {call.number} ({call.method!r})"
                                )
                            unanswered.popleft().told.put(answer)
        except WorkerError as error:
            unanswered.popleft().told.put(error)
        finally:  # also after Ctrl-C
            why = f"the worker cannot be called: {self._gone or 'a call was interrupted'}"
            for call in unanswered:
                call.told.put(WorkerDied(why, called=False))

    def close(self, timeout_s: float = 2.0) -> None:
        """Lets the process end, and kills it after ``timeout_s``. Calls in other threads then raise WorkerDied."""
        process = self._process
        if process is None or os.getpid() != self._owner:
            return
        if not self._lock.acquire(timeout=timeout_s):
            self.kill()
            return
        try:
            if not self._reaped and process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout_s)
            self._reap("it was closed")
        finally:
            self._lock.release()

    def kill(self) -> None:
        """Kills the process and its children at once. Calls in other threads raise WorkerDied."""
        process = self._process
        if process is None or self._reaped or os.getpid() != self._owner:
            return
        self._gone = self._gone or "it was killed"
        if process.returncode is None:
            _kill_group(process)
        with self._lock:  # released by a call that has lost its pipe
            self._reap("it was killed")

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_in_a_fork(self) -> None:
        # Before the lock is taken: a thread of the parent may have held it at the fork.
        if self._process is not None and os.getpid() != self._owner:
            raise WorkerDied(f"the worker belongs to process {self._owner}; start one in this process", called=False)

    def _spawn(self) -> Frames:
        if self._process is not None:
            self._reap("it was replaced")
        self._stderr = bytearray()
        self._owner = os.getpid()
        self._ids = itertools.count(1)
        try:
            # In its own session, Ctrl-C does not reach it, and killing the group ends grandchildren too.
            self._process = process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            why = f"the worker could not be started: {error}. Command: {' '.join(self.command)}"
            raise WorkerDied(why, called=False) from error
        self._frames = Frames(process)
        self._gone, self._reaped = "", False
        self._drain = threading.Thread(target=_keep_tail, args=(process.stderr, self._stderr), daemon=True)
        self._drain.start()
        weakref.finalize(self, _kill_if_ours, process, self._owner)  # also at interpreter exit
        return self._frames

    def _reap(self, why: str) -> None:
        self._gone = self._gone or why
        process = self._process
        if process is None or self._reaped:
            return
        self._reaped = True
        _kill_group(process)  # grandchildren too; while one lives, the group's number is not reused
        process.wait()
        if self._drain is not None:
            self._drain.join(PARTING_S)  # an escaped grandchild may hold stderr open
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    @contextlib.contextmanager
    def _killed_on_failure(self) -> Any:
        try:
            yield
        except WorkerError as error:
            self._reap(f"{type(error).__name__}: {error}")
            if said := self.stderr.strip():
                error.args = (f"{error}\nThe worker's last output:\n{said[-_SHOWN_STDERR:]}",)
            raise
        except BaseException as error:
            self._reap(f"it was interrupted by {type(error).__name__}")
            raise


def _environment() -> dict[str, str]:
    # The hash seed fixes the order of sets, which a backend may print.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONHASHSEED": "0"}


def _keep_tail(pipe: Any, kept: bytearray) -> None:
    """Reads ``pipe`` to its end, so that the worker never blocks on it."""
    with contextlib.suppress(OSError, ValueError), pipe:
        while chunk := os.read(pipe.fileno(), 65536):
            kept += chunk
            del kept[:-_KEPT_STDERR]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _kill_if_ours(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner and process.returncode is None:
        _kill_group(process)
        process.wait()


def _described(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    return f"{error.get('type')}: {error.get('message')}\n{error.get('traceback', '')}".rstrip()
