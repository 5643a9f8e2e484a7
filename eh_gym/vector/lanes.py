"""Lanes: calls of one lane run one after the other, in their order; different lanes run side by side.

There are no deadlines, because a thread cannot be killed. A backend that may hang belongs in a worker process
(eh_gym.worker).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from gymnasium.error import ClosedEnvironmentError

__all__ = ["Lanes"]

P = ParamSpec("P")
T = TypeVar("T")


class Lanes:
    """Serial queues of calls over one pool of threads.

    A lane whose call has ended goes to the back of the pool's queue, so that no lane keeps a thread from the others.

    Args:
        count: Lanes, numbered from 0.
        max_workers: Threads; 0 runs every call in the thread that submits it, before ``submit`` returns. A callback
            that submits again then runs inside the call before it; with threads it does not.
    """

    def __init__(self, count: int, max_workers: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers, thread_name_prefix="eh-slot") if max_workers else None
        self._lock = threading.Lock()  # guards everything below
        self._idle = threading.Condition(self._lock)
        self._waiting: list[deque[tuple[Future[Any], Callable[[], Any]]]] = [deque() for _ in range(count)]
        self._busy = [False] * count
        self._unanswered = [0] * count
        self._closed = False

    def submit(self, lane: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Appends a call to a lane; its result or its exception goes to the future and nowhere else.

        Raises:
            gymnasium.error.ClosedEnvironmentError: The lanes are closed.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise ClosedEnvironmentError("this vector environment is closed; build a new one")
            self._waiting[lane].append((future, lambda: function(*args, **kwargs)))
            self._unanswered[lane] += 1
            idle = not self._busy[lane]
            self._busy[lane] = True
            here = idle and not self._in_pool(lane)
        if here:
            self._run(lane)
        return future

    def unanswered(self, lane: int) -> int:
        """Calls of a lane whose futures are not done yet."""
        return self._unanswered[lane]

    def close(self) -> None:
        """Cancels the calls that have not begun and waits for those that have. Not to be called from within a call."""
        with self._lock:
            self._closed = True
            dropped = [(lane, future) for lane, queue in enumerate(self._waiting) for future, _ in queue]
            for queue in self._waiting:
                queue.clear()
        for lane, future in dropped:
            future.cancel()
            self._answer(lane, future, None)
        with self._lock:
            self._idle.wait_for(lambda: not any(self._busy))
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _run(self, lane: int) -> None:
        while True:
            with self._lock:
                if not self._waiting[lane]:
                    self._busy[lane] = False
                    self._idle.notify_all()
                    return
                future, call = self._waiting[lane].popleft()
            self._answer(lane, future, call)
            with self._lock:
                if self._waiting[lane] and self._in_pool(lane):
                    return

    def _in_pool(self, lane: int) -> bool:
        """Whether a thread of the pool will run the lane. If not, the present thread must, or `close` would wait forever."""
        if self._pool is None:
            return False
        try:
            self._pool.submit(self._run, lane)
        except RuntimeError as error:
            if "new futures" not in str(error):  # a pool takes none once the interpreter ends
                raise
            return False
        return True

    def _answer(self, lane: int, future: Future[Any], call: Callable[[], Any] | None) -> None:
        result, error = None, None
        wanted = future.set_running_or_notify_cancel()
        if wanted and call is not None:
            try:
                result = call()
            except BaseException as raised:
                error = raised
        with self._lock:  # before the future is done, so that the lane is free when the future's waiter continues
            self._unanswered[lane] -= 1
        if wanted:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
                error = None  # breaks the cycle of frame, traceback and exception
