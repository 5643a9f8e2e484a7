"""Frames to and from a child process."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from typing import Any

from eh_gym.errors import WorkerDied, WorkerProtocolError, WorkerTimeout
from eh_gym.worker import child

PARTING_S = 10.0  # for the last output of a process that has closed its pipe
_LONGEST_WAIT_S = 2e6  # poll() takes no more


class Frames:
    """The pipes of a process. Calls are written while answers are read, so that neither side blocks the other."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin.fileno(), process.stdout.fileno()
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe, False)
        self._unsent = memoryview(b"")
        self._unread = bytearray()  # often holds several answers

    def send(self, frames: bytes) -> None:
        """Writes ``frames``, in part during ``receive``. All earlier frames must be answered."""
        self._unsent = memoryview(frames)
        self._write()

    def receive(self, deadline: float, what: str, timeout_s: float) -> dict[str, Any]:
        """Returns the message of the next frame, or raises the errors of ``Worker.call``.

        They name ``what`` and ``timeout_s``. The deadline is in seconds of ``time.monotonic()``.
        """
        header = child.HEADER.size
        self._read(header, deadline, what, timeout_s)
        magic, size = child.HEADER.unpack_from(self._unread)
        if magic != child.MAGIC:
            raise WorkerProtocolError(f"waiting for {what}, the worker sent {magic!r}, which begins no frame")
        if size > child.MAX_FRAME_BYTES:
            raise WorkerProtocolError(
                f"the worker announced a frame of {size:,} bytes; the limit is {child.MAX_FRAME_BYTES:,}"
            )
        self._read(header + size, deadline, what, timeout_s)
        try:
            message = json.loads(self._unread[header : header + size].decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise WorkerProtocolError(f"the worker sent a frame that is not JSON: {error}") from error
        if not isinstance(message, dict):
            raise WorkerProtocolError(f"the worker sent a {type(message).__name__}, not an object")
        del self._unread[: header + size]
        return message

    def _read(self, size: int, deadline: float, what: str, timeout_s: float) -> None:
        while len(self._unread) < size:
            if not self._wait(deadline):
                raise WorkerTimeout(f"waited {timeout_s:g} s for {what}; the worker was killed")
            self._write()
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(self._stdout, 1 << 16)
                if not chunk:
                    raise _ended(self._process)
                self._unread += chunk

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # the process has ended; its last answers can still be read
            self._unsent = memoryview(b"")

    def _wait(self, deadline: float) -> bool:
        # Checks once after the deadline, too: the answer may have come in time while this process was held up.
        poll = select.poll()  # not select(): it fails for descriptors >= 1024
        poll.register(self._stdout, select.POLLIN)
        if self._unsent:
            poll.register(self._stdin, select.POLLOUT)
        return bool(poll.poll(min(max(0.0, deadline - time.monotonic()), _LONGEST_WAIT_S) * 1000))


def _ended(process: subprocess.Popen[bytes]) -> WorkerDied:
    try:
        code = process.wait(PARTING_S)
    except subprocess.TimeoutExpired:
        return WorkerDied("the worker closed its end of the pipe; it was killed")
    if code < 0:
        return WorkerDied(f"the worker was killed by signal {signal.Signals(-code).name}", signal=-code)
    return WorkerDied(f"the worker exited with status {code}")
