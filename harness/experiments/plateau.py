"""Where success stops rising with K: the band of horizons that no measurement tells from the best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["LEAST_TOLERANCE", "Plateau", "plateau"]

LEAST_TOLERANCE = 0.02
"""Success rates nearer than this count as equal, whatever the seeds' spread says."""


@dataclass(frozen=True)
class Plateau:
    """Where success stops rising with K.

    Attributes:
        low: The smallest K of the band, our estimate of the frontier H*.
        high: The largest K of the band; the largest that was tried means that the band is open to the right.
        best: The K with the highest mean success.
        tolerance: How far below it the band's lowest mean may lie.
    """

    low: int
    high: int
    best: int
    tolerance: float


def plateau(success_by_k: Mapping[int, Sequence[float]], least: float = LEAST_TOLERANCE) -> Plateau | None:
    """The band of K that no measurement tells from the best.

    The rule: K is as good as the best one if its mean success lies at most one pooled standard error of their difference,
    or `least` if that is more, below the best mean. The band is what can be reached from the best K over such K without
    a gap. The pooled variance is over the seeds of every K; with one seed each, `least` decides alone.

    Args:
        success_by_k: For each K the success rate of each seed; a K without any is left out.
        least: The least tolerance, as a share of episodes.

    Returns:
        The band; None without any success rate.
    """
    known = {k: list(values) for k, values in sorted(success_by_k.items()) if values}
    if not known:
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
