"""Whether processes have ended, also those that are not this one's children; a zombie has."""

import time

import psutil


def lives(process: int | psutil.Process) -> bool:
    """Whether a process, or the one with this id, runs."""
    try:
        return bool((psutil.Process(process) if isinstance(process, int) else process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(*processes: int | psutil.Process) -> bool:
    """Waits for their ends; False if one still runs after two minutes."""
    deadline = time.monotonic() + 120
    while any(map(lives, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
