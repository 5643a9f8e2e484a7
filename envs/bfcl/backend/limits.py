"""The limits on the time and memory that an agent's message may take in a worker, which other episodes share.

bfcl-eval has none. With calls as arguments of calls, 2,000 characters can ask for gigabytes or for years.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# Characters of all results of one message. In the native format the worker sends each result twice, with up to 12
# bytes for a character, in a frame of 64 MiB.
LONGEST_RESULTS = 2_000_000
TOO_LONG = f"the results of one message may have {LONGEST_RESULTS:,} characters"
_MEMORY = 1 << 30  # bytes; a worker with the ground truth of all entries takes 49 MB

_Result = TypeVar("_Result")
_running = False


class _OutOfTime(BaseException):
    """Not an Exception, because exceptions are results of calls."""


def prepare() -> None:
    """Prepares the worker for ``limited``, and limits its memory where there is /proc. Call this in the main thread.

    If the machine's memory runs out, the kernel kills the worker before the trainer.
    """
    signal.signal(signal.SIGPROF, _interrupt)
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = given = resource.getrlimit(resource.RLIMIT_AS)
        bounds = [pages * resource.getpagesize() + _MEMORY, *given]
        resource.setrlimit(resource.RLIMIT_AS, (min(b for b in bounds if b != resource.RLIM_INFINITY), hard))
        Path("/proc/self/oom_score_adj").write_text("1000")


def limited(do: Callable[[], _Result], seconds: float) -> _Result:
    """Returns ``do()``, or raises TimeoutError after ``seconds`` of processor time, in Python code, or MemoryError."""
    global _running
    try:
        _running = True
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            return do()
        finally:
            _running = False
            signal.setitimer(signal.ITIMER_PROF, 0.0)
    except _OutOfTime:  # it may also come during `finally`
        error: Exception = TimeoutError(f"the calls of one message may take {seconds:g} s of processor time")
    except MemoryError:
        error = MemoryError(f"the worker may take {_MEMORY >> 20} MiB")
    raise error  # here, because the caught exception keeps the memory of `do`


def refuse_long(value: Any, most: int = LONGEST_RESULTS) -> None:
    """Raises ValueError if ``value`` as text has more than ``most`` characters, without making the text.

    Nested calls can make values that are much smaller than their text.
    """
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, list | tuple | set):
            parts += part
        else:
            most -= len(part) if isinstance(part, str) else len(str(part))
        most -= 1
        if most < 0:
            raise ValueError(TOO_LONG)


def _interrupt(*_: object) -> None:
    global _running
    if _running:
        _running = False
        raise _OutOfTime
