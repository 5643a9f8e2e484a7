"""WorkerPool: a few worker processes shared by many sessions.

A session's state is in its process. If the process dies, the session's calls raise, and its owner opens a new one.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from eh_gym.errors import ConfigError
from eh_gym.worker.process import Worker


class Session:
    """A place in a worker, made by ``WorkerPool.session``. ``id`` is unique within the pool."""

    def __init__(self, pool: WorkerPool, slot: _Slot, worker: Worker, session_id: int) -> None:
        self.id = session_id
        self._pool = pool
        self._slot = slot
        self._worker = worker
        self._open = True

    @property
    def alive(self) -> bool:
        """Whether the session is open and its worker still lives."""
        return self._open and self._worker.alive

    def call(self, method: str, params: Mapping[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        """``Worker.call`` with this session's id added to the parameters as ``"session"``."""
        return self._worker.call(method, {**(params or {}), "session": self.id}, timeout_s)

    def close(self) -> None:
        """Gives the place back. Idempotent. The backend is not told."""
        if self._open:
            self._open = False
            self._pool._release(self._slot)


class _Slot:
    def __init__(self) -> None:
        self.load = 0  # open sessions
        self.worker: Worker | None = None
        self.starting = threading.Lock()


class WorkerPool:
    """Several workers with the same command. Thread-safe.

    Workers start when they are first needed, and a dead one is replaced at its next session.
    In a forked copy of the process the pool begins without workers.

    Args:
        size: Most worker processes, >= 1.
        command: As for ``Worker``.
    """

    def __init__(self, size: int, command: Sequence[str]) -> None:
        if size < 1:
            raise ConfigError(f"a pool needs at least one worker, got size={size}")
        self._command = tuple(command)
        self._ids = itertools.count(1)
        self._closed = False
        self._begin(size)
        _pools.add(self)

    def _begin(self, size: int) -> None:
        self._slots = [_Slot() for _ in range(size)]
        self._lock = threading.Lock()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that live."""
        workers = [slot.worker for slot in self._slots]
        return [w.pid for w in workers if w is not None and w.alive and w.pid is not None]

    def session(self) -> Session:
        """Places a new session on the worker with the fewest.

        Raises:
            WorkerError: The worker could not be started (see ``Worker.start``).
            ConfigError: The pool is closed.
        """
        with self._lock:
            self._refuse_if_closed()
            slot = min(self._slots, key=lambda slot: slot.load)
            slot.load += 1
            session_id = next(self._ids)
        try:
            with slot.starting:
                self._refuse_if_closed()  # again: close() may have passed this slot
                if slot.worker is None or not slot.worker.alive:
                    worker = Worker(self._command)
                    worker.start()
                    slot.worker = worker
                return Session(self, slot, slot.worker, session_id)
        except BaseException:
            self._release(slot)
            raise

    def close(self) -> None:
        """Ends all workers. Calls of open sessions raise WorkerDied afterwards."""
        with self._lock:
            self._closed = True
        for slot in self._slots:
            with slot.starting:
                if slot.worker is not None:
                    slot.worker.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ConfigError("the pool is closed; make a new one")

    def _release(self, slot: _Slot) -> None:
        with self._lock:
            slot.load -= 1


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_shared_pools: dict[tuple[int, tuple[str, ...]], WorkerPool] = {}
_shared_lock = threading.Lock()


def shared_pool(size: int, command: Sequence[str]) -> WorkerPool:
    """The pool of this size and command that all of this process share until ``close_shared_pools``."""
    key = (size, tuple(command))
    with _shared_lock:
        if key not in _shared_pools:
            _shared_pools[key] = WorkerPool(size, command)
        return _shared_pools[key]


def close_shared_pools() -> None:
    """Ends the workers of all shared pools; the next use starts new ones."""
    with _shared_lock:
        pools = list(_shared_pools.values())
        _shared_pools.clear()
    for pool in pools:
        pool.close()


def _forget_after_fork() -> None:
    # Threads of the parent may have held the locks at the fork.
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool._begin(len(pool._slots))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
