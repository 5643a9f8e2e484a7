"""The plateau: the band of horizons whose success cannot be distinguished from the best one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["LEAST_TOLERANCE", "Plateau", "plateau"]

LEAST_TOLERANCE = 0.02
"""Success rates that differ by less than this count as equal, whatever the spread over seeds is."""


@dataclass(frozen=True)
class Plateau:
    """The band of K in which success no longer rises.

    Attributes:
        low: The smallest K of the band. It estimates the frontier H*.
        high: The largest K of the band. If it is the largest K that was tried, the band may go on beyond it.
        best: The K with the highest mean success.
        tolerance: How far below the best mean the lowest mean of the band may lie.
    """

    low: int
    high: int
    best: int
    tolerance: float


def plateau(success_by_k: Mapping[int, Sequence[float]], least: float = LEAST_TOLERANCE) -> Plateau | None:
    """Finds the band of K whose success cannot be distinguished from the best.

    K is as good as the best K if its mean success is at most a tolerance below the best mean. The tolerance is one pooled
    standard error of the difference, or `least` if that is more. The band contains the best K and every such K that is
    reached from it without a gap. The variance is pooled over the seeds of all K; if each K has one seed, the tolerance is
    `least`.

    Args:
        success_by_k: For each K, the success rate of each seed. A K without a success rate is skipped.
        least: The smallest tolerance, as a share of episodes.

    Returns:
        The band; None if fewer than two K have a success rate.
    """
    known = {k: list(values) for k, values in sorted(success_by_k.items()) if values}
    if len(known) < 2:
        return None
    means = {k: statistics.fmean(values) for k, values in known.items()}
    best = max(means, key=lambda k: (means[k], -k))
    freedom = sum(len(values) - 1 for values in known.values())
    squares = sum((v - means[k]) ** 2 for k, values in known.items() for v in values)
    variance = squares / freedom if freedom else 0.0
    tolerance = {k: max(least, math.sqrt(variance * (1 / len(known[k]) + 1 / len(known[best])))) for k in known}
    ks = list(known)
    low = high = ks.index(best)
    as_good = [means[best] - means[k] <= tolerance[k] + 1e-12 for k in ks]
    while low > 0 and as_good[low - 1]:
        low -= 1
    while high + 1 < len(ks) and as_good[high + 1]:
        high += 1
    return Plateau(ks[low], ks[high], best, max(tolerance[k] for k in ks[low : high + 1]))
