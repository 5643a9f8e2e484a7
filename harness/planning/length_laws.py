"""Distributions of the number of steps that an agent needs: those of the paper's table, and one with a gap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

__all__ = ["GAP", "PAPER", "LengthLaw"]


@dataclass(frozen=True)
class LengthLaw:
    """A distribution of needed steps.

    Attributes:
        name: The name in titles.
        p: float64 [L]; ``p[i]`` is the probability of i + 1 steps. The probabilities add up to 1.
    """

    name: str
    p: np.ndarray

    def quantile(self, q: float) -> int:
        """Returns the smallest number of steps that is enough for the share `q` of the episodes."""
        possible = np.flatnonzero(self.p)
        return int(possible[np.searchsorted(np.cumsum(self.p[possible]), q - 1e-12)]) + 1


def log_normal(name: str, least: int, median: float, p90: float, longest: int) -> LengthLaw:
    """Makes a shifted log-normal distribution, rounded to whole steps. Longer lengths count as `longest`.

    The shift is `least` - 1/2, so that the shortest length rounds to `least`.

    >>> law = log_normal("AppWorld", 9, 14, 37.21, 50)
    >>> law.quantile(0.5), law.quantile(0.9)
    (14, 37)
    """
    shift = least - 0.5
    normal = NormalDist(
        math.log(median - shift), math.log((p90 - shift) / (median - shift)) / NormalDist().inv_cdf(0.9)
    )
    ends = [0.0 if n < least else normal.cdf(math.log(n + 0.5 - shift)) for n in range(longest)]
    return LengthLaw(name, np.diff([*ends, 1.0]))


# Table "Quantile statistics of successful trajectory lengths at training step 100": min, P50, P90, max.
PAPER: dict[str, LengthLaw] = {
    "appworld": log_normal("AppWorld (the paper's quantiles)", 9, 14, 37.21, 50),
    "bfcl": log_normal("BFCL (the paper's quantiles)", 1, 11, 24.29, 50),
}

GAP = LengthLaw("70 % of 3 to 9 steps, 30 % of 25 to 45", np.repeat([0, 0.1, 0, 0.3 / 21], [2, 7, 15, 21]))
"""Lengths with a gap, below which K can stay."""
