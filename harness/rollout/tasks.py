"""Which tasks and episodes an update trains on: a pure function of its index, so a resumed run needs no saved state."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eh_gym.errors import ConfigError
from harness.types.request import EpisodeRequest
from harness.types.seeding import derive_seed


class TaskStream:
    """Goes through all tasks again and again, in a new random order each time. A pass continues across updates.

    Several environments take turns in a fixed order, each as often as its weight says. Each has its own passes.

    >>> stream = TaskStream([["a", "b", "c"]], per_update=2, seed=0)
    >>> sorted(stream.batch(0) + stream.batch(1)[:1])
    ['a', 'b', 'c']
    >>> TaskStream([["a"], ["b"]], per_update=6, seed=0, weights=[2, 1]).batch(0)
    ['a', 'b', 'a', 'a', 'b', 'a']
    """

    def __init__(
        self, parts: Sequence[Sequence[str]], *, per_update: int, seed: int, weights: Sequence[int] = ()
    ) -> None:
        if not all(map(len, parts)):
            raise ConfigError("the environment's split holds no task; choose another split or category")
        self._parts, self._per_update, self._seed = parts, per_update, seed
        self._turns = _turns(weights or [1] * len(parts))
        self._pass = [(-1, np.empty(0, dtype=np.int64))] * len(parts)

    def batch(self, update: int) -> list[str]:
        first = update * self._per_update
        return [self._task(*self._turn(position)) for position in range(first, first + self._per_update)]

    def _turn(self, position: int) -> tuple[int, int]:
        rounds, place = divmod(position, len(self._turns))
        part = self._turns[place]
        return part, rounds * self._turns.count(part) + self._turns[:place].count(part)

    def _task(self, part: int, position: int) -> str:
        number, place = divmod(position, len(self._parts[part]))
        if self._pass[part][0] != number:
            rng = np.random.default_rng(derive_seed(self._seed, "pass", number, *([part] if part else [])))
            self._pass[part] = (number, rng.permutation(len(self._parts[part])))
        return self._parts[part][int(self._pass[part][1][place])]


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The episodes of each update: `group_size` of each task. Each derives its own seed from the run's."""

    stream: TaskStream
    group_size: int
    updates: int
    seed: int

    def requests(self, update: int) -> list[EpisodeRequest]:
        return [
            EpisodeRequest(task_id, group, derive_seed(self.seed, "episode", update, group, member))
            for group, task_id in enumerate(self.stream.batch(update))
            for member in range(self.group_size)
        ]


def _turns(weights: Sequence[int]) -> list[int]:
    """One round of turns. The index that is furthest behind its weight comes next.

    >>> _turns([3, 1])
    [0, 0, 1, 0]
    """
    total, turns = sum(weights), []
    behind = [0] * len(weights)
    for _ in range(total):
        behind = [late + weight for late, weight in zip(behind, weights, strict=True)]
        turns.append(behind.index(max(behind)))
        behind[turns[-1]] -= total
    return turns
