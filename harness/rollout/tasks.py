"""Which tasks an update trains on, as a pure function of the update index.

So a resumed run trains on the same tasks as an uninterrupted run, and nothing has to be saved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eh_gym.errors import ConfigError
from harness.types.seeding import derive_seed

__all__ = ["TaskStream"]


class TaskStream:
    """Goes through all tasks again and again, each time in a new random order.

    Args:
        task_ids: All tasks of the split.
        per_update: The number of tasks per update. A pass over the tasks continues across updates.
        seed: The seed of the random orders.

    >>> stream = TaskStream(["a", "b", "c"], per_update=2, seed=0)
    >>> sorted(stream.batch(0) + stream.batch(1)[:1])
    ['a', 'b', 'c']
    """

    def __init__(self, task_ids: Sequence[str], *, per_update: int, seed: int) -> None:
        if per_update < 1:
            raise ConfigError(f"tasks_per_update must be >= 1, got {per_update}")
        if not len(task_ids):
            raise ConfigError("the environment's split holds no task; choose another split or category")
        self._task_ids, self._per_update, self._seed = task_ids, per_update, seed
        self._pass = (-1, np.empty(0, dtype=np.int64))
        self._spare = (-1, np.empty(0, dtype=np.int64))

    @property
    def per_update(self) -> int:
        """The number of tasks per update."""
        return self._per_update

    def batch(self, update: int) -> list[str]:
        """The tasks of one update."""
        return [self._task_ids[index] for index in self._indices(update)]

    def spare(self, update: int, index: int) -> str:
        """A task to replace one of the update: `index` = 0, 1, … of a random order, those first that the update does not have."""
        if self._spare[0] != update:
            order = np.random.default_rng(derive_seed(self._seed, "spare", update)).permutation(len(self._task_ids))
            own = np.isin(order, self._indices(update))
            self._spare = (update, np.concatenate([order[~own], order[own]]))
        return self._task_ids[int(self._spare[1][index % len(self._task_ids)])]

    def _indices(self, update: int) -> list[int]:
        first = update * self._per_update
        return [self._index(position) for position in range(first, first + self._per_update)]

    def _index(self, position: int) -> int:
        number, place = divmod(position, len(self._task_ids))
        if self._pass[0] != number:
            rng = np.random.default_rng(derive_seed(self._seed, "pass", number))
            self._pass = (number, rng.permutation(len(self._task_ids)))
        return int(self._pass[1][place])
