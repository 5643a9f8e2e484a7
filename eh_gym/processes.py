"""File locks that end with a process, and processes that end with their parent."""

import contextlib
import ctypes
import os
import signal
import sys
from typing import IO, Any

# Loaded before any fork, because little is safe between fork and exec.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def lock(file: IO[Any] | int, *, wait: bool = False) -> bool:
    """Locks an open file until every process that has inherited it has closed it.

    Args:
        file: A file or its descriptor.
        wait: Whether to wait while another process holds the lock.

    Returns:
        Whether this process got the lock.

    Raises:
        OSError: The file system has no locks.
        ImportError: The system has none (Windows).
    """
    import fcntl

    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return True
    return False


def unlock(file: IO[Any]) -> None:
    """Frees a file's lock, also for processes that have inherited the open file."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_UN)


def most_files() -> int:
    """Lets this process open as many files and connections as the system allows, and returns how many."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft >= 0 else 2**20


def end_with(parent: int) -> None:
    """On Linux, ends this process when the thread that started it ends, or now if the process `parent` has ended."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)
