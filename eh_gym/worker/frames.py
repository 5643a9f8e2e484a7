"""Frames to and from a child process, each written and read before a deadline."""

import json
import os
import select
import signal
import subprocess
import time
from typing import Any

from eh_gym.errors import WorkerDied, WorkerProtocolError, WorkerTimeout
from eh_gym.worker import child

PARTING_S = 10.0  # for the exit status and the last output of a process that has closed its pipe
_LONGEST_WAIT_S = 2e6  # poll() takes no more; deadlines beyond it, infinity too, end here


def send(process: subprocess.Popen[bytes], frames: bytes, deadline: float, method: str, timeout_s: float) -> None:
    """Writes whole ``frames`` to the process's stdin, which does not block. The errors name ``method`` and ``timeout_s``.

    Raises:
        WorkerTimeout: The process did not take all of it before the deadline (seconds of ``time.monotonic()``).
        WorkerDied: It ended, or closed its end of the pipe.
    """
    assert process.stdin is not None
    fd = process.stdin.fileno()
    view = memoryview(frames)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            if not _wait(fd, select.POLLOUT, deadline):
                raise WorkerTimeout(f"the worker did not take the call {method!r} in {timeout_s:g} s") from None
        except OSError as error:
            raise _ended(process) from error


def receive(process: subprocess.Popen[bytes], deadline: float, what: str, timeout_s: float) -> dict[str, Any]:
    """Reads one frame from the process's stdout, which does not block, and returns its message. The errors name ``what``.

    Raises:
        WorkerTimeout: No whole frame came before the deadline (seconds of ``time.monotonic()``).
        WorkerDied: The process ended, or closed its end of the pipe.
        WorkerProtocolError: What came is not a frame, too long, or not a JSON object.
    """
    magic, size = child.HEADER.unpack(_read(process, child.HEADER.size, deadline, what, timeout_s))
    if magic != child.MAGIC:
        raise WorkerProtocolError(f"waiting for {what}, the worker sent {magic!r}, which begins no frame")
    if size > child.MAX_FRAME_BYTES:
        raise WorkerProtocolError(
            f"the worker announced a frame of {size:,} bytes; the limit is {child.MAX_FRAME_BYTES:,}"
        )
    body = _read(process, size, deadline, what, timeout_s)
    try:
        message = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise WorkerProtocolError(f"the worker sent a frame that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WorkerProtocolError(f"the worker sent a {type(message).__name__}, not an object")
    return message


def _read(process: subprocess.Popen[bytes], size: int, deadline: float, what: str, timeout_s: float) -> bytes:
    assert process.stdout is not None
    fd = process.stdout.fileno()
    data = bytearray()
    while len(data) < size:
        if not _wait(fd, select.POLLIN, deadline):
            raise WorkerTimeout(f"waited {timeout_s:g} s for {what}; the worker was killed")
        try:
            chunk = os.read(fd, min(size - len(data), 1 << 16))
        except BlockingIOError:
            continue
        if not chunk:
            raise _ended(process)
        data += chunk
    return bytes(data)


def _wait(fd: int, event: int, deadline: float) -> bool:
    """Whether ``fd`` became ready before the deadline (time.monotonic seconds).

    Checks once more after the deadline, because the answer may have come in time while this process was held up.
    """
    poll = select.poll()  # not select(): it fails for descriptors >= 1024
    poll.register(fd, event)
    return bool(poll.poll(min(max(0.0, deadline - time.monotonic()), _LONGEST_WAIT_S) * 1000))


def _ended(process: subprocess.Popen[bytes]) -> WorkerDied:
    try:
        code: int | None = process.wait(PARTING_S)
    except subprocess.TimeoutExpired:
        code = None  # it lives, but has closed the pipe
    if code is None:
        return WorkerDied("the worker closed its end of the pipe; it was killed")
    how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    return WorkerDied(f"the worker {how}")
