"""Measures how far the trainer's log-probabilities are from the sampler's, by episode length.

An engine rounds differently from the trainer, and with `--max-staleness` it is also some updates behind. The later a token
comes in an episode, the more both affect the tokens that it was conditioned on. The correction for the mismatch is
`importance_weights` in `harness.training.loss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from harness.types.trajectory import LENGTH_BINS

__all__ = ["Mismatch"]


class Mismatch:
    """Sums over the scored tokens of one update; `metrics` turns them into means.

    On a GPU, `add` and `add_weights` only queue work: no number is read before the sums are needed.
    """

    def __init__(self) -> None:
        self._unread: list[Callable[[], None]] = []
        self._max = 0.0
        bins = range(len(LENGTH_BINS))
        self._tokens, self._difference, self._capped = [0 for _ in bins], [0.0 for _ in bins], [0 for _ in bins]
        self._weight = 0.0

    @torch.no_grad()
    def add(self, logp: Tensor, sampled: Tensor, mask: Tensor, steps: Sequence[int]) -> None:
        """Adds episodes that were scored before the policy's first step.

        Args:
            logp: float [B, S], the trainer's log-probabilities.
            sampled: float [B, S], the sampler's log-probabilities.
            mask: bool [B, S], True for tokens that the model wrote.
            steps: The number of steps of each of the B episodes.
        """
        difference = (logp - sampled).abs().masked_fill(~mask, 0.0)
        largest, sums, counts = difference.max(), difference.sum(dim=1), mask.sum(dim=1)

        def read() -> None:
            self._max = float(np.maximum(self._max, float(largest)))  # unlike `max` it keeps NaN
            for length, total, count in zip(steps, sums.tolist(), counts.tolist(), strict=True):
                self._difference[_bin(length)] += total
                self._tokens[_bin(length)] += count

        self._unread.append(read)

    @torch.no_grad()
    def add_weights(self, weights: Tensor, capped: Tensor, mask: Tensor, steps: Sequence[int]) -> None:
        """Adds the importance weights of episodes; call `add` for the same episodes, before or after.

        Args:
            weights: float [B, S], the importance weights.
            capped: bool [B, S], True if the weight was out of bounds.
            mask: bool [B, S], True for tokens that the model wrote.
            steps: The number of steps of each of the B episodes.
        """
        total, counts = weights.masked_fill(~mask, 0.0).sum(), (capped & mask).sum(dim=1)

        def read() -> None:
            self._weight += float(total)
            for length, count in zip(steps, counts.tolist(), strict=True):
                self._capped[_bin(length)] += count

        self._unread.append(read)

    def settled(self) -> Mismatch:
        """Reads what is queued, and returns this object, which other processes can then have."""
        for read in self._unread:
            read()
        self._unread.clear()
        return self

    def merged(self, others: Sequence[Mismatch]) -> Mismatch:
        """The sums of this object and of others, such as those of other ranks."""
        found = Mismatch()
        for one in (self.settled(), *others):
            found._max = float(np.maximum(found._max, one._max))
            found._weight += one._weight
            found._tokens = [a + b for a, b in zip(found._tokens, one._tokens, strict=True)]
            found._difference = [a + b for a, b in zip(found._difference, one._difference, strict=True)]
            found._capped = [a + b for a, b in zip(found._capped, one._capped, strict=True)]
        return found

    def metrics(self, *, weighted: bool) -> dict[str, float]:
        """The ``train/logp_difference_…`` metrics, and with `weighted` ``train/tis_…``; NaN where nothing was compared."""
        self.settled()
        tokens = sum(self._tokens)
        found = {
            "train/logp_difference_max": self._max if tokens else math.nan,
            "train/logp_difference_mean": sum(self._difference) / tokens if tokens else math.nan,
        }
        for (name, _), total, count in zip(LENGTH_BINS, self._difference, self._tokens, strict=True):
            found[f"train/logp_difference_{name}"] = total / count if count else math.nan
        if weighted:
            found["train/tis_weight_mean"] = self._weight / tokens if tokens else math.nan
            found["train/tis_capped"] = sum(self._capped) / tokens if tokens else math.nan
            for (name, _), capped, count in zip(LENGTH_BINS, self._capped, self._tokens, strict=True):
                found[f"train/tis_capped_{name}"] = capped / count if count else math.nan
        return found


def _bin(steps: int) -> int:
    return next(i for i, (_, most) in enumerate(LENGTH_BINS) if steps <= most)
