"""Where a batch of episodes is played: here, or in a thread of its own while the policy is trained on the batch before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["Player"]

P = ParamSpec("P")
T = TypeVar("T")


class Player:
    """Runs one call at a time.

    Args:
        overlap: In a thread; else in the caller's, before `play` returns.
    """

    def __init__(self, *, overlap: bool) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="eh-rollout") if overlap else None

    def play(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls `function`; what it returns or raises is in the future."""
        if self._thread is not None:
            return self._thread.submit(function, *args, **kwargs)
        future: Future[T] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Waits for a call on its way; close the environments first, so that its next step ends it."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
