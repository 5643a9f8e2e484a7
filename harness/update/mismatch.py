"""Measures how far the trainer's log-probabilities are from the sampler's, by episode length.

docs/harness.md, "Two sets of log-probabilities", says where they come from. The correction is `importance_weights` in
`harness.update.loss`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from harness.types.trajectory import LENGTH_BINS


class Mismatch:
    """Sums over the scored tokens of one update. `metrics` turns them into means.

    On a GPU, `add` only queues work. The numbers are read when the sums are needed.
    """

    def __init__(self) -> None:
        self._unread: list[tuple[Sequence[int], list[Tensor]]] = []
        self._max = self._weight = 0.0
        # For each group of episode lengths, the number of tokens, their differences, and the number of capped weights.
        self._sums = np.zeros((3, len(LENGTH_BINS)))

    @torch.no_grad()
    def add(
        self,
        logp: Tensor,
        sampled: Tensor,
        mask: Tensor,
        steps: Sequence[int],
        weights: Tensor | None = None,
        capped: Tensor | None = None,
    ) -> None:
        """Adds episodes that were scored before the policy's first step.

        Args:
            logp: float [B, S], the trainer's log-probabilities.
            sampled: float [B, S], the sampler's log-probabilities.
            mask: bool [B, S], True for tokens that the model wrote.
            steps: The number of steps of each of the B episodes.
            weights: float [B, S], the importance weights, if there are some.
            capped: bool [B, S], True if the weight was out of bounds.
        """
        difference = (logp - sampled).abs().masked_fill(~mask, 0.0)
        numbers = [difference.max(), mask.sum(dim=1), difference.sum(dim=1)]
        if weights is not None and capped is not None:
            numbers = [weights.masked_fill(~mask, 0.0).sum(), *numbers, (capped & mask).sum(dim=1)]
        self._unread.append((steps, numbers))

    def settled(self) -> Mismatch:
        """Reads the queued numbers and returns this object, which can then be sent to other processes."""
        for steps, numbers in self._unread:
            if len(numbers) > 3:
                self._weight += float(numbers.pop(0))
            self._max = float(np.maximum(self._max, float(numbers[0])))  # unlike `max` it keeps NaN
            for row, values in zip(self._sums, numbers[1:], strict=False):
                for length, value in zip(steps, values.tolist(), strict=True):
                    row[_bin(length)] += value
        self._unread.clear()
        return self

    def merged(self, others: Sequence[Mismatch]) -> Mismatch:
        total = Mismatch()
        for one in (self.settled(), *others):
            total._max = float(np.maximum(total._max, one._max))
            total._weight += one._weight
            total._sums += one._sums
        return total

    def metrics(self, *, weighted: bool) -> dict[str, float]:
        """The ``train/logp_difference_…`` metrics, `weighted` also ``train/tis_…``; NaN without a token."""
        tokens, differences, capped = self.settled()._sums.tolist()
        metrics = {"train/logp_difference_max": self._max if any(tokens) else math.nan}
        means = [("logp_difference", "logp_difference_mean", differences)]
        if weighted:
            metrics["train/tis_weight_mean"] = _mean(self._weight, sum(tokens))
            means.append(("tis_capped", "tis_capped", capped))
        for name, of_all, sums in means:
            metrics[f"train/{of_all}"] = _mean(sum(sums), sum(tokens))
            for (group, _), total, count in zip(LENGTH_BINS, sums, tokens, strict=True):
                metrics[f"train/{name}_{group}"] = _mean(total, count)
        return metrics


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan


def _bin(steps: int) -> int:
    return next(i for i, (_, most) in enumerate(LENGTH_BINS) if steps <= most)
