"""Ids of tasks that are made when they are needed, because a split can have millions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

__all__ = ["LazyIds"]


class LazyIds(Sequence[str]):
    """A sequence whose subclass says how long it is, and in `_at` which id has an index >= 0."""

    def _at(self, index: int) -> str:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        """The id at an index (a negative one counts from the end), or the list of ids of a slice."""
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tasks, got the index {index}")
        return self._at(index % len(self))
