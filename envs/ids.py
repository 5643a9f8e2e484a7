"""The ids of an environment's tasks, and sequences that make ids when needed, because a split can have millions."""

from collections.abc import Sequence
from typing import Any, cast, overload

import gymnasium as gym


def task_ids_of(env: gym.Env[Any, Any]) -> Sequence[str] | None:
    return cast("Sequence[str] | None", getattr(env.unwrapped, "task_ids", None))


class LazyIds(Sequence[str]):
    """A sequence of ids. A subclass defines its length, and in `_at` the id at an index >= 0."""

    def _at(self, index: int) -> str:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tasks, got the index {index}")
        return self._at(index % len(self))
