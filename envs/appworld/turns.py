"""Turns: how the worlds of this process share the processors while their steps run.

A step that computes for long gives way to resets, to steps that have just begun, and to others that compute for long.
It is stopped and continued (SIGSTOP, SIGCONT), so nothing of it stays when nobody waits.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

_TURN_S = 0.1
_LONG_CPU_S = 0.25  # processor time from which a step is long
_FRESH_S = 1.0  # later, a step that is not long waits for something else
_SHARE = 4  # of so many turns, long steps have one even if others wait
_MOST_LOST = 10  # at most so many timeouts of lost time do not count against a step


class Process(Protocol):
    """What a step needs of a process, such as `envs.appworld.forks.Fork`, which describes the methods."""

    def times(self) -> tuple[float, float]: ...

    def threads(self) -> int: ...

    def signal(self, number: int) -> bool: ...


class Step:
    """What the processes of a world do until the next answer. Only a verdict has no `shell`, the agent's code.

    After `timeout_s` seconds the engine is told to end the code.
    """

    def __init__(self, apps: Process, shell: Process | None, timeout_s: float) -> None:
        self._shell, self.timeout_s = shell, timeout_s
        self._processes = [apps] if shell is None else [apps, shell]
        self.began = time.monotonic()
        self._before = self._times()
        self._stopped_at: float | None = None
        self._stopped_s = 0.0
        self.long, self.threads, self.ran_s, self.lost_s = False, 1, 0.0, 0.0

    def refresh(self) -> None:
        """Brings `long`, `threads`, `ran_s` and `lost_s` up to date.

        The last are the seconds in which the step could run, and in which it was stopped or waited for a processor.
        """
        now, (cpu_s, delay_s) = time.monotonic(), self._times()
        stopped_s = self._stopped_s + (0.0 if self._stopped_at is None else now - self._stopped_at)
        self.lost_s = stopped_s + delay_s - self._before[1]
        self.ran_s = now - self.began - min(self.lost_s, _MOST_LOST * self.timeout_s)
        self.long = cpu_s - self._before[0] >= _LONG_CPU_S
        if self.long and self._shell is not None:
            self.threads = self._shell.threads()

    def go(self, on: bool) -> None:
        now = time.monotonic()
        if on and self._stopped_at is not None:
            self._stopped_s, self._stopped_at = self._stopped_s + now - self._stopped_at, None
        elif not on and self._stopped_at is None:
            self._stopped_at = now
        else:
            return
        for process in self._processes:
            process.signal(signal.SIGCONT if on else signal.SIGSTOP)

    def wait(self, connection: socket.socket) -> None:
        """Runs the step until the answer begins. Raises TimeoutError if none does up to 5 s after the timeout."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        interrupted = warned = False
        with turns().running(self):
            while not poll.poll(1000 * _TURN_S):
                self.refresh()
                turns().share()
                if self._shell is not None and self.ran_s > self.timeout_s and not interrupted:
                    interrupted = self._shell.signal(signal.SIGALRM)
                if self.ran_s > self.timeout_s + min(5.0, self.timeout_s / 4):
                    raise TimeoutError
                if self.lost_s > _MOST_LOST * self.timeout_s and not warned:
                    warned = True
                    logging.getLogger(__name__).warning(
                        "this machine is overloaded: a step in AppWorld has waited %.0f s for a processor, and what "
                        "it waits from now on counts as its own time; play fewer episodes at once",
                        self.lost_s,
                    )

    def _times(self) -> tuple[float, float]:
        times = [process.times() for process in self._processes]
        return sum(cpu_s for cpu_s, _ in times), sum(delay_s for _, delay_s in times)


class _Reset:
    pass


class Turns:
    """The steps and resets of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Weak, because an interrupt may come between any two lines.
        self._steps = weakref.WeakKeyDictionary[Step, None]()
        self._resets = weakref.WeakSet[_Reset]()
        self._turn = 0

    @contextlib.contextmanager
    def running(self, step: Step) -> Iterator[None]:
        with self._lock:
            self._steps[step] = None
            self._share()
        try:
            yield
        finally:
            with self._lock:
                self._steps.pop(step, None)
                step.go(True)
                self._share()

    @contextlib.contextmanager
    def reset(self) -> Iterator[None]:
        """Lets long steps give way inside the block."""
        reset = _Reset()
        with self._lock:
            self._resets.add(reset)
            self._share()
        try:
            yield
        finally:
            with self._lock:
                self._resets.discard(reset)
                self._share()

    def share(self) -> None:
        """Begins the next turn if it is time."""
        with self._lock:
            if int(time.monotonic() / _TURN_S) != self._turn:
                self._share()

    def _share(self) -> None:
        now = time.monotonic()
        self._turn = int(now / _TURN_S)
        long = [step for step in self._steps if step.long]
        waiting = len(self._resets) + sum(not step.long and now - step.began < _FRESH_S for step in self._steps)
        room, going = len(os.sched_getaffinity(0)) - waiting, False
        first = self._turn // (_SHARE if waiting else 1) % len(long) if long else 0
        for step in long[first:] + long[:first]:
            # The first one may have more threads than there are processors.
            goes = step.threads <= room or not (going or (waiting and self._turn % _SHARE))
            step.go(goes)
            if goes:
                room, going = room - step.threads, True


def turns() -> Turns:
    return _turns(os.getpid())


@functools.cache
def _turns(pid: int) -> Turns:
    return Turns()
