"""Waiting for what happens elsewhere, such as the ends of processes, also of those that are not this one's children."""

import time

import psutil


def wait_until(true, seconds=30):
    """Waits until `true()`. An AssertionError if it is not true in time."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(process):
    """Whether a process, or the one with this id, runs; a zombie does not."""
    try:
        return bool((psutil.Process(process) if isinstance(process, int) else process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(*processes):
    """Waits for their ends; False if one still runs after two minutes."""
    deadline = time.monotonic() + 120
    while any(map(lives, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
