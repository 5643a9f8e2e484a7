"""Distributions of the number of steps that an agent needs. The simulated controller is played against them.

A simulated episode succeeds if it needs at most K steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist

import numpy as np

from eh_gym.errors import ConfigError, StateError
from harness.run.episode_log import read_episodes

__all__ = ["PAPER", "LengthLaw", "from_episodes", "log_normal", "two_part"]

_Z90 = NormalDist().inv_cdf(0.9)
_LONGEST = int(np.iinfo(np.int16).max)


@dataclass(frozen=True)
class LengthLaw:
    """A distribution of needed steps.

    Attributes:
        name: The name in titles.
        p: float64 [L]; ``p[i]`` is the probability of i + 1 steps. The probabilities add up to 1.
    """

    name: str
    p: np.ndarray

    def __post_init__(self) -> None:
        if self.p.ndim != 1 or not len(self.p) or (self.p < 0).any() or not math.isclose(self.p.sum(), 1.0):
            raise ConfigError(f"p must be probabilities that add up to 1, got {self.p!r}; divide them by their sum")
        if len(self.p) > _LONGEST:
            raise ConfigError(f"the longest length must be <= {_LONGEST}, got {len(self.p)}; shorten the longest")

    def draw(self, rng: np.random.Generator, runs: int, episodes: int, group: int = 1) -> np.ndarray:
        """Draws the number of steps that each episode of one update needs, for several runs.

        Args:
            rng: Draws one task for every `group` episodes.
            runs: The number of runs, R.
            episodes: The number of episodes of the update, E. It must be a multiple of `group`.
            group: The number of episodes of one task. They need the same number of steps.

        Returns:
            int16 [R, E].
        """
        if episodes % group:
            raise ConfigError(f"episodes must be a multiple of group ({group}), got {episodes}")
        drawn = rng.integers(0, 1 << 16, size=(runs, episodes // group), dtype=np.uint16)
        lengths: np.ndarray = np.repeat(self._inverse[drawn], group, axis=1)
        return lengths

    @cached_property
    def _inverse(self) -> np.ndarray:
        """The length of each of 65,536 equal shares. It is 6 times as fast as a search, and off by 1 in 131,072."""
        shares = (np.arange(1 << 16) + 0.5) / (1 << 16)
        places = np.searchsorted(np.cumsum(self.p), shares, side="right")
        inverse: np.ndarray = np.minimum(places, np.flatnonzero(self.p)[-1]) + 1
        return inverse.astype(np.int16)  # `__post_init__` refuses longer ones

    def mean(self) -> float:
        """The mean, in steps."""
        return float(self.p @ np.arange(1, len(self.p) + 1))

    def quantile(self, q: float, k: int | None = None) -> int:
        """Returns the `q` quantile of the lengths of at most `k` steps: the smallest length with the share `q` at or below it.

        Returns 0 if no length is that short.
        """
        p = self.p if k is None else self.p[:k]
        possible = np.flatnonzero(p)
        shares = np.cumsum(p[possible])
        return int(possible[np.searchsorted(shares, q * shares[-1] - 1e-12)]) + 1 if len(possible) else 0

    def share_within(self, k: int) -> float:
        """Returns the share of episodes that need at most `k` steps."""
        return float(self.p[:k].sum())


def log_normal(name: str, least: int, median: float, p90: float, longest: int) -> LengthLaw:
    """Makes a shifted log-normal distribution, rounded to whole steps. Longer lengths count as `longest`.

    The shift is `least` - 1/2, so that the shortest length rounds to `least`.

    Args:
        name: The name in titles.
        least: The shortest length, >= 1.
        median: The P50, above `least` - 1/2.
        p90: The P90, above `median`.
        longest: The longest length.

    >>> law = log_normal("AppWorld", 9, 14, 37.21, 50)
    >>> law.quantile(0.5), law.quantile(0.9), round(law.mean(), 1)
    (14, 37, 18.6)
    """
    shift = least - 0.5
    if not (1 <= least <= longest and shift < median < p90):
        raise ConfigError(
            f"need 1 <= least <= longest and least - 0.5 < median < p90, got least {least}, median {median}, p90 {p90}, "
            f"longest {longest}"
        )
    normal = NormalDist(math.log(median - shift), math.log((p90 - shift) / (median - shift)) / _Z90)
    ends = [0.0 if n < least else normal.cdf(math.log(n + 0.5 - shift)) for n in range(longest)]
    return LengthLaw(name, np.diff([*ends, 1.0]))


def two_part(name: str, short: tuple[int, int], long: tuple[int, int], share_long: float) -> LengthLaw:
    """Makes a distribution of two uniform parts with a gap between them. Here a controller can stay below the gap.

    Args:
        name: The name in titles.
        short: The first and the last length of the short part.
        long: The first and the last length of the long part.
        share_long: The share of the long part, in [0, 1].

    >>> law = two_part("gap", (3, 9), (25, 45), 0.3)
    >>> round(law.share_within(9), 6), round(law.share_within(24), 6), law.quantile(0.9, k=19)
    (0.7, 0.7, 9)
    """
    if not (1 <= short[0] <= short[1] and 1 <= long[0] <= long[1] and 0 <= share_long <= 1):
        raise ConfigError(f"need 1 <= first <= last and 0 <= share_long <= 1, got {short}, {long}, {share_long}")
    p = np.zeros(max(short[1], long[1]))
    for (first, last), share in ((short, 1 - share_long), (long, share_long)):
        p[first - 1 : last] += share / (last - first + 1)
    return LengthLaw(name, p)


def from_episodes(path: Path) -> LengthLaw:
    """Makes the distribution of the lengths of the successes in an episode log.

    No success is longer than its K, so the distribution ends at the K of the episodes. Take the log of a run or of an evaluation
    with a large K.

    Args:
        path: A ``.jsonl`` file, or a folder of them, such as a run's ``episodes``.

    Raises:
        ConfigError: The log can't be read, or has no success.
    """
    files: Sequence[Path] = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise ConfigError(f"{path} is no episode log; give a .jsonl file, or a folder of them such as RUN/episodes")
    lengths: list[int] = []
    for file in files:
        try:
            lengths += [int(episode["length"]) for episode in read_episodes(file) if episode["success"]]
        except (OSError, StateError) as error:
            raise ConfigError(f"{file} can't be read: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"an episode of {file} has no success and length ({error!r})") from error
    if not lengths or min(lengths) < 1:
        raise ConfigError(f"{path} holds no success of at least one step; give the log of an agent that succeeds")
    counts = np.bincount(lengths)[1:]
    return LengthLaw(path.name, counts / counts.sum())


# Table "Quantile statistics of successful trajectory lengths at training step 100": min, P50, P90, max.
PAPER: dict[str, LengthLaw] = {
    "appworld": log_normal("AppWorld (paper's quantiles)", 9, 14, 37.21, 50),
    "bfcl": log_normal("BFCL (paper's quantiles)", 1, 11, 24.29, 50),
}
