"""95 % intervals of a share of successes, also where a task has several episodes."""

import math

import numpy as np

_Z = 1.959964  # two-sided 95 %


def wilson_interval(p: float, n: float) -> tuple[float, float]:
    """Returns Wilson's 95 % score interval of a share `p` in `n` independent trials. It has a width even at 0 and 1.

    >>> [round(x, 3) for x in wilson_interval(1.0, 100)]
    [0.963, 1.0]
    """
    if n <= 0:
        return 0.0, 1.0
    centre, spread = p + _Z**2 / (2 * n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def effective_episodes(won: np.ndarray, played: np.ndarray) -> float:
    """The number of independent episodes whose share of successes varies as much as that of the tasks' episodes.

    The k episodes of one task are alike. So this takes V, the variance of the mean share between tasks, and the number
    of independent episodes that would have it (the design effect): 1 + p (1 - p) / V, since p (1 - p) + V is an
    unbiased estimate of an episode's variance. Where p is 0 or 1, or there is one task, V can't be estimated, and the
    number of tasks is taken. Franco et al. (2019, PMC6690503) recommend Wilson's interval of this number. `won` and
    `played` count each task's successes and episodes, [tasks].
    """
    mean, n = float(won.sum() / played.sum()), len(won)
    if n == 1 or mean in (0.0, 1.0):
        return n
    variance = float(np.var(won / played, ddof=1)) / n
    return min(1 + mean * (1 - mean) / variance if variance > 0 else math.inf, float(played.sum()))
