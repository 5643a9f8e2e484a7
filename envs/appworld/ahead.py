"""Makes worlds ahead, one after the other in a thread, and keeps them until they are taken.

Errors are not reported here. If a world could not be made ahead, its user makes it and gets the error.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from eh_gym.errors import EHError

__all__ = ["Ahead"]


class _Closes(Protocol):
    def close(self) -> None: ...


W = TypeVar("W", bound=_Closes)


class Ahead(Generic[W]):
    """The worlds that are made ahead. Thread-safe.

    Args:
        make: Makes a world of a task.
    """

    def __init__(self, make: Callable[[str], W]) -> None:
        self._make = make
        self._changed = threading.Condition()
        self._ready: dict[str, list[W]] = {}
        self._wanted: Counter[str] = Counter()  # task -> worlds asked for and not begun
        self._making: str | None = None
        self._keep = True  # whether the world that is being made is still wanted
        self._maker = ThreadPoolExecutor(1, "appworld-ahead")

    def take(self, task_id: str) -> W | None:
        """A world of the task that was made ahead; None if there is none. Waits for one that is being made."""
        with self._changed:
            while True:
                if self._ready.get(task_id):
                    return self._ready[task_id].pop()
                if self._making != task_id or not self._keep:
                    break
                self._changed.wait()
            if self._wanted[task_id] > 0:
                self._wanted[task_id] -= 1  # not begun: the caller makes this world itself
            return None

    def prepare(self, task_ids: Sequence[str]) -> None:
        """Makes worlds for these tasks, one for each mention. Worlds made earlier that these do not need are closed."""
        wanted = Counter(task_ids)
        surplus = []
        with self._changed:
            for task_id, ready in self._ready.items():
                while len(ready) > wanted[task_id]:
                    surplus.append(ready.pop())
                wanted[task_id] -= len(ready)
            if self._making is not None:
                self._keep = wanted[self._making] > 0
                wanted[self._making] -= 1
            self._wanted = +wanted
        for world in surplus:
            world.close()
        self._maker.submit(self._run)

    def stop(self) -> None:
        """Stops making worlds. The worlds that wait to be taken are not closed here: the caller ends them with all others."""
        with self._changed:
            self._wanted.clear()
            self._keep = False
        self._maker.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while True:
            with self._changed:
                task_id = next((t for t, n in self._wanted.items() if n > 0), None)
                if task_id is None:
                    return
                self._wanted[task_id] -= 1
                self._making, self._keep = task_id, True
            world = None
            try:
                world = self._make(task_id)
            except EHError:
                return
            finally:
                with self._changed:
                    kept = world is not None and self._keep
                    if world is not None and kept:
                        self._ready.setdefault(task_id, []).append(world)
                    self._making = None
                    self._changed.notify_all()
            if not kept:
                world.close()
