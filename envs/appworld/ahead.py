"""Makes worlds ahead, one after the other in a thread, and keeps them until they are taken.

Errors are not reported here. If a world could not be made ahead, its user makes it and gets the error.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
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
        self._running = self._stopped = False  # whether there is a thread; whether `stop` was called

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
        """Makes worlds for these tasks, one for each mention. Other worlds that were made earlier are closed.

        After ``stop`` it makes none.
        """
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
            if not self._stopped:
                self._wanted = +wanted
                if not self._running:
                    # Python would wait at its exit for a thread that is no daemon, and for a pool's in any case.
                    threading.Thread(target=self._run, name="appworld-ahead", daemon=True).start()
                    self._running = True
        for world in surplus:
            world.close()

    def stop(self) -> None:
        """Stops making worlds. The worlds that wait to be taken are not closed here: the caller ends them with all others."""
        with self._changed:
            self._wanted.clear()
            self._keep, self._stopped = False, True

    def _run(self) -> None:
        while True:
            with self._changed:
                task_id = next((t for t, n in self._wanted.items() if n > 0), None)
                if task_id is None:
                    self._running = False
                    return
                self._wanted[task_id] -= 1
                self._making, self._keep = task_id, True
            world = None
            try:
                world = self._make(task_id)
            except EHError:
                pass
            finally:
                with self._changed:
                    kept = world is not None and self._keep
                    if world is not None and kept:
                        self._ready.setdefault(task_id, []).append(world)
                    self._making, self._running = None, world is not None
                    self._changed.notify_all()
            if world is None:
                return
            if not kept:
                world.close()
