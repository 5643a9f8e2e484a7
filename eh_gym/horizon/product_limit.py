"""The distribution of lengths from successes that could only be seen if they fitted into their K.

Left out: confidence bands, and lengths beyond the largest K, of which such data say nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["product_limit"]


def product_limit(lengths: ArrayLike, horizons: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The product-limit estimate for right-truncated data (Lynden-Bell 1971; Woodroofe 1985).

    A success of length L was seen because L <= K. Among the successes that would have been seen at length x and are at
    most x long, R(x) = #{i: L_i <= x <= K_i}, the share that is exactly x long, d(x) / R(x), is free of the truncation, so

        F(x) = product over the lengths y > x of (1 - d(y) / R(y)).

    With one K for all this is the share of the lengths <= x. F is relative to what the largest K can show.

    Args:
        lengths: Of the successes, in steps.
        horizons: The K of each, at least its length.

    Returns:
        The distinct lengths, ascending, int64 [D], and F at each, float64 [D]; the last is 1.

    >>> x, F = product_limit([3, 3, 3, 3, 8, 3, 3], [5, 5, 5, 5, 9, 9, 9])  # one of three that 9 steps could show is long
    >>> x.tolist(), F.round(3).tolist()
    ([3, 8], [0.667, 1.0])
    """
    x, counts = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)
    limits = np.sort(np.asarray(horizons, dtype=np.int64))
    # K_i < x implies L_i <= K_i < x, so R(x) = #{L_i <= x} - #{K_i < x}.
    at_risk = np.cumsum(counts) - np.searchsorted(limits, x, side="left")
    stay = 1.0 - counts / at_risk
    return x, np.append(np.cumprod(stay[:0:-1])[::-1], 1.0)
