"""What an episode has earned, and whether it is a success. docs/harness.md has the rules as a table."""

from collections.abc import Sequence
from typing import NamedTuple

_TOLERANCE = 1e-9  # relative; ten rewards of 0.1 add up to less than 1


class Result(NamedTuple):
    """The reward and the success of an episode."""

    reward: float
    success: bool


def result_of(
    total: float, *, ended: bool, verdict: float | None = None, threshold: float = 1.0, keep: bool = False
) -> Result:
    """Returns the reward and the success of an episode that is over.

    Args:
        total: The sum of its rewards.
        ended: Whether the task's rules ended it. An episode that was stopped is no success, and earns its sum or 0,
            whichever is less. Where no reward is below 0, this is the 0 of the Elastic Horizon paper, Sec. 3.2.
        verdict: The environment's verdict; a number is a success from 1 on. None if the sum decides.
        threshold: The least sum that is a success without a verdict.
        keep: Whether a stopped episode keeps the sum instead.

    >>> result_of(0.8, ended=True, verdict=True), result_of(sum([0.1] * 10), ended=True).success
    (Result(reward=0.8, success=True), True)
    >>> result_of(1.2, ended=False), result_of(-3.0, ended=False, keep=True)
    (Result(reward=0.0, success=False), Result(reward=-3.0, success=False))
    """
    won = ended and (succeeds(total, threshold) if verdict is None else bool(verdict >= 1))
    return Result(earned(total, ended=ended, keep=keep), won)


def earned(total: float, *, ended: bool, keep: bool = False) -> float:
    """The reward of `result_of`, which has the rule.

    >>> earned(1.2, ended=False), earned(1.2, ended=False, keep=True), earned(-3.0, ended=False)
    (0.0, 1.2, -3.0)
    """
    return total if ended or keep or total < 0 else 0.0


def succeeds(reward: float, threshold: float = 1.0) -> bool:
    """Whether a sum of rewards reaches a threshold, but for rounding.

    >>> succeeds(sum([0.1] * 10)), succeeds(0.99)
    (True, False)
    """
    return reward >= threshold - _TOLERANCE * max(1.0, abs(threshold))


def settled(rewards: Sequence[float | None]) -> list[float]:
    """The rewards of a group's or an evaluation's episodes, where None is an episode whose agent failed.

    It earns the least of the others, and at most 0, so that failing never pays.

    >>> settled([1.0, None]), settled([-3.0, None, -5.0])
    ([1.0, 0.0], [-3.0, -5.0, -5.0])
    """
    least = min([0.0, *(reward for reward in rewards if reward is not None)])
    return [least if reward is None else reward for reward in rewards]
