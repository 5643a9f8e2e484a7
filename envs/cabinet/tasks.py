"""The tasks of EH-Cabinet: their ids, splits and contents.

A task is made from its id alone. Splits share no ids, but short chains have the same contents: one drawer has only
12 x 100, and 28 % of all tasks are that short.
"""

import random
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from eh_gym.errors import ConfigError
from envs.ids import LazyIds

DRAWERS = "abcdefghijkl"
LONGEST_CHAIN = 11
LONGEST_LOCKED_CHAIN = 10
LOCKED_FROM = 4  # drawers; shorter chains have no lock
STEPS_PER_DRAWER = 3  # open, read, close (or submit)
UNLOCK_STEPS = 2  # unlock, open again

_STOP = 0.28  # the probability that a chain ends at each of its drawers
_SPLIT_SIZES = {"train": 1_000_000, "dev": 10_000, "test": 100_000}
SPLITS = (*_SPLIT_SIZES, "all")


def _at_most(longest: int) -> tuple[float, ...]:
    """P(a chain has at most m drawers) for m = 1 .. longest: a geometric distribution with its tail at the longest."""
    return (*(1.0 - (1.0 - _STOP) ** m for m in range(1, longest)), 1.0)


_LENGTH_CDF = {False: _at_most(LONGEST_CHAIN), True: _at_most(LONGEST_LOCKED_CHAIN)}


@dataclass(frozen=True, slots=True)
class CabinetTask:
    """The contents of one cabinet.

    Attributes:
        chain: The 1 to 11 drawers to read, in order.
        code: The two digits to submit.
        locked: The drawer that is locked, one of ``chain[1:]``, or None.
    """

    task_id: str
    chain: str
    code: str
    locked: str | None

    @property
    def optimal_steps(self) -> int:
        """The expert's steps, the fewest without a lucky guess."""
        return STEPS_PER_DRAWER * len(self.chain) + (UNLOCK_STEPS if self.locked else 0)


def make_task(task_id: str, *, locked: bool = False, longest: int = LONGEST_CHAIN) -> CabinetTask:
    """Makes the task with this id. ``locked`` chooses the variant, which has other contents under the same ids.

    Chains of more than ``longest`` drawers are cut to it. Only ``random.Random(str).random()`` is used, because Python
    promises to keep that sequence between versions.

    Example:
        >>> make_task("train-000000") == make_task("train-000000")
        True
        >>> make_task("train-000000", locked=True).locked in (None, *DRAWERS)
        True
    """
    draw = random.Random(f"eh-cabinet{'-locked' if locked else ''}/{task_id}").random
    length = min(1 + bisect_right(_LENGTH_CDF[locked], draw()), longest)
    drawers = list(DRAWERS)
    for i in range(length):  # the first `length` places of a Fisher-Yates shuffle
        j = i + int(draw() * (len(drawers) - i))
        drawers[i], drawers[j] = drawers[j], drawers[i]
    chain = "".join(drawers[:length])
    code = f"{int(draw() * 100):02d}"
    lock = chain[1 + int(draw() * (length - 1))] if locked and length >= LOCKED_FROM else None
    return CabinetTask(task_id, chain, code, lock)


def recurring_tasks(number: int, *, locked: bool = False, longest: int = LONGEST_CHAIN) -> tuple[str, ...]:
    """The ids of the first training tasks (`make_task`) whose lengths have the proportions of the whole split.

    Example:
        >>> ids = recurring_tasks(25)
        >>> ids[:2], [len(make_task(id).chain) for id in ids].count(1)
        (('train-000000', 'train-000001'), 7)
    """
    if number not in range(1, 10_001):
        raise ConfigError(f"tasks must be 1 to 10,000, got {number!r}")
    cdf = (*_LENGTH_CDF[locked][: longest - 1], 1.0)
    wanted = Counter(1 + bisect_right(cdf, (place + 0.5) / number) for place in range(number))
    ids: list[str] = []
    for task_id in TaskIds("train"):
        drawers = len(make_task(task_id, locked=locked, longest=longest).chain)
        if wanted[drawers]:
            wanted[drawers] -= 1
            ids.append(task_id)
        if len(ids) == number:
            break
    return tuple(ids)


class TaskIds(LazyIds):
    """The ids of some splits, one split after the other.

    Args:
        splits: Some of train (1,000,000 tasks), dev (10,000) and test (100,000).

    Example:
        >>> ids = TaskIds("dev", "test")
        >>> len(ids), ids[0], ids[-1], ids[9_999:10_001], "dev-010000" in ids
        (110000, 'dev-000000', 'test-099999', ['dev-009999', 'test-000000'], False)
    """

    def __init__(self, *splits: str) -> None:
        self._splits = splits

    def __len__(self) -> int:
        return sum(_SPLIT_SIZES[split] for split in self._splits)

    def _at(self, index: int) -> str:
        for split in self._splits:
            if index < _SPLIT_SIZES[split]:
                return f"{split}-{index:06d}"
            index -= _SPLIT_SIZES[split]
        raise AssertionError("the index is below the length")

    def __contains__(self, task_id: object) -> bool:
        split, _, digits = task_id.partition("-") if isinstance(task_id, str) else ("", "", "")
        if split not in self._splits or len(digits) != 6 or not (digits.isascii() and digits.isdigit()):
            return False
        return int(digits) < _SPLIT_SIZES[split]

    def __eq__(self, other: object) -> bool:
        return self._splits == other._splits if isinstance(other, TaskIds) else NotImplemented

    def __repr__(self) -> str:
        return f"TaskIds({', '.join(map(repr, self._splits))})"


def task_ids(split: str) -> TaskIds:
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return TaskIds(*_SPLIT_SIZES) if split == "all" else TaskIds(split)
