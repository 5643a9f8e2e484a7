"""Turns: how the worlds of this process share the processors while their steps run.

A step that computes for long gives way to resets, to steps that have just begun, and to others that compute for long.
It is stopped and continued (SIGSTOP, SIGCONT), so nothing of it stays when nobody waits.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

from envs.appworld.backend.cgroups import processors

_TURN_S = 0.1
_LONG_CPU_S = 0.25  # processor time from which a step is long
_FRESH_S = 1.0  # later, a step that is not long waits for something else
_SHARE = 8  # of so many turns, long steps have one even if others wait
_LONGEST_WAIT_S = 1.0  # for a processor
_MOST_LOST = 10  # at most so many timeouts of lost time do not count against a step


class Process(Protocol):
    """What a step needs of a process, such as `envs.appworld.forks.Fork`, which describes the methods."""

    def times(self) -> tuple[float, float, float]: ...

    def threads(self) -> int: ...

    def signal(self, number: int) -> bool: ...

    def warm_up(self) -> None: ...


class Step:
    """What the processes of a world do until the next answer. Only a verdict has no `shell`, the agent's code.

    After `timeout_s` seconds the engine is told to end the code.
    """

    def __init__(self, apps: Process, shell: Process | None, timeout_s: float) -> None:
        self._shell, self.timeout_s = shell, timeout_s
        self._processes = [apps] if shell is None else [apps, shell]
        self.began = time.monotonic()
        self._stopped_at: float | None = None
        self._stopped_s = 0.0
        self._times: list[tuple[float, float, float]] = []  # of a step that is stopped; they stay
        self._seen = self._look()
        self._cpu_s = self._waits_s = 0.0
        self.long, self.threads, self.ran_s, self.lost_s = False, 1, 0.0, 0.0

    def refresh(self) -> None:
        """Brings `long`, `threads`, `ran_s` and `lost_s` up to date.

        The last are the seconds in which the step could run, and in which others kept it from running. Neither has the
        time in which this process itself stood still, as in a suspended container: that is nobody's.
        """
        seen = self._look()
        passed_s, stopped_s, cpu_s, main_s, delay_s = map(operator.sub, seen, self._seen)
        self._seen = seen
        passed_s = min(passed_s, 2 * _TURN_S)  # this process looks every turn, if it does not stand still
        # Other threads of the code keep the main ones, of two processes, waiting only while they use all processors.
        # The system tells a wait at its end, so what exceeds the passed time, or those threads' own, is kept for later.
        waits_s = self._waits_s + delay_s - 2 * max(0.0, cpu_s - main_s) / processors()
        stopped_s = min(stopped_s, passed_s)
        lost_s = min(passed_s, stopped_s + max(0.0, waits_s))
        self._waits_s = max(-_LONGEST_WAIT_S, min(waits_s - (lost_s - stopped_s), _LONGEST_WAIT_S))
        left_s = max(0.0, _MOST_LOST * self.timeout_s - self.lost_s)
        self.ran_s += max(passed_s - min(lost_s, left_s), cpu_s / processors())
        self.lost_s += lost_s
        self._cpu_s += cpu_s
        self.long = self.long or self._cpu_s >= _LONG_CPU_S  # it stays: a process that has ended tells no time
        if self.long and self._shell is not None and not self._times:
            self.threads = self._shell.threads()

    def go(self, on: bool) -> None:
        now = time.monotonic()
        if on and self._stopped_at is not None:
            self._stopped_s, self._stopped_at = self._stopped_s + now - self._stopped_at, None
        elif not on and self._stopped_at is None:
            self._stopped_at = now
        else:
            return
        self._times = []
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

    def _look(self) -> tuple[float, ...]:
        """The seconds until now: of the clock, stopped, and the sums of `Process.times`."""
        now, times = time.monotonic(), self._times or [process.times() for process in self._processes]
        if self._stopped_at is not None:
            self._times = times
        stopped_s = self._stopped_s + (0.0 if self._stopped_at is None else now - self._stopped_at)
        return now, stopped_s, *map(sum, zip(*times, strict=True))


class _Reset:
    pass


class Turns:
    """The steps and resets of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Weak, because an interrupt may come between any two lines.
        self._steps = weakref.WeakKeyDictionary[Step, None]()
        self._resets = weakref.WeakSet[_Reset]()
        self._cold = weakref.WeakSet[Process]()  # of the apps of new worlds
        self._turn = 0

    def made(self, apps: Process) -> None:
        """Has a new world warm up when no reset goes on, unless it is used before."""
        with self._lock:
            self._cold.add(apps)

    def used(self, apps: Process) -> None:
        with self._lock:
            self._cold.discard(apps)

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
                while self._cold and not self._resets:
                    self._cold.pop().warm_up()

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
        room, going = processors() - waiting, False
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
