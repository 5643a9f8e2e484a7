"""Numbers from the records of one run, such as the peak, the tokens to a threshold and the final K; and spreads over seeds.

These are pure functions from the rows of ``metrics.jsonl`` and from ``evaluation.json`` to numbers.
`harness.experiments.plateau` and `harness.experiments.suite_table` compare several runs; `harness.experiments.manifest` reads
the files.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Arm",
    "RunRecords",
    "Spread",
    "SuccessPoint",
    "horizon_series",
    "is_held_out",
    "paired_difference",
    "peak",
    "run_numbers",
    "savings",
    "settled_at",
    "spread",
    "success_at",
    "success_by",
    "success_curve",
    "tokens_to",
]

Rows = Sequence[Mapping[str, Any]]
T = TypeVar("T")

# Parts of the run, as shares of its length.
_LAST_QUARTER = (0.75, 1.0)  # the paper's "last 50 steps" of 200
_MIDDLE = (0.5, 0.85)  # what the paper calls mid-training: steps 100 to 170 of 200
_END = (0.9, 1.0)


@dataclass(frozen=True)
class RunRecords:
    """The records of one training run.

    Attributes:
        seed: The seed of the run.
        rows: The rows of ``metrics.jsonl``, in order.
        evaluation: The content of ``evaluation.json``; empty if the run has not ended or was not evaluated.
    """

    seed: int
    rows: Rows
    evaluation: Mapping[str, Any]

    def curve(self, *, held_out: bool) -> list[SuccessPoint]:
        """Returns the success rate by tokens; see `success_curve`."""
        before = (self.evaluation.get("before") or {}).get("sampled") or {}
        return success_curve(self.rows, before.get("mean_at_k"), held_out=held_out)


@dataclass(frozen=True)
class Arm:
    """One setting of a suite and its runs, one per seed.

    Attributes:
        label: Its name in tables.
        settings: Its values of fields of `GRPOConfig`.
        runs: The runs that have ended.
    """

    label: str
    settings: Mapping[str, Any]
    runs: Sequence[RunRecords]


class Spread(NamedTuple):
    """The mean, the sample standard deviation (n - 1; None for one value) and the number of values."""

    mean: float
    std: float | None
    n: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Returns the mean and standard deviation over seeds of the known values; None if there is none.

    >>> spread([0.2, 0.4, None])
    Spread(mean=0.30000000000000004, std=0.1414213562373095, n=2)
    """
    known = [float(v) for v in values if v is not None and math.isfinite(v)]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


class SuccessPoint(NamedTuple):
    """A success rate during training, with the number of updates and training tokens before it."""

    updates: int
    tokens: float
    success: float


def is_held_out(runs: Iterable[Rows]) -> bool:
    """Whether one of several runs that are compared was evaluated during training. Then all their curves are held-out success."""
    return any(row.get("evaluation/mean_at_k") is not None for rows in runs for row in rows)


def success_curve(rows: Rows, before: float | None = None, *, held_out: bool) -> list[SuccessPoint]:
    """Returns the success rate by tokens.

    Args:
        rows: The metrics, with ``tokens/total``. The updates after which the run was evaluated (``--eval-every``) also have
            ``evaluation/mean_at_k``.
        before: The held-out success before training. It becomes the point at 0 tokens.
        held_out: Whether the points are held-out evaluations. Otherwise they are the success of the training episodes, as the
            mean of 5 updates. This depends on the K of each update, so it is not a fair comparison between horizons.

    Returns:
        The points, oldest first. With `held_out` there are none for a run that was not evaluated during training.
    """
    evaluated = [
        SuccessPoint(row["update"] + 1, row["tokens/total"], row["evaluation/mean_at_k"])
        for row in rows
        if row.get("evaluation/mean_at_k") is not None
    ]
    if held_out:
        return ([SuccessPoint(0, 0.0, before)] if evaluated and before is not None else []) + evaluated
    known = [row for row in rows if row.get("rollout/success") is not None]
    return [
        SuccessPoint(
            row["update"] + 1,
            row["tokens/total"],
            statistics.fmean(r["rollout/success"] for r in known[max(0, i - 4) : i + 1]),
        )
        for i, row in enumerate(known)
    ]


def peak(curve: Sequence[SuccessPoint]) -> SuccessPoint | None:
    """Returns the highest point, and the earliest of equal ones. A maximum of noisy points is too high, for every arm."""
    return max(curve, key=lambda point: (point.success, -point.updates)) if curve else None


def tokens_to(curve: Sequence[SuccessPoint], threshold: float) -> float | None:
    """Returns the training tokens until the success rate first reaches `threshold`; None if it never does.

    Evaluations are several updates apart. So the tokens are interpolated linearly between the last point below the threshold
    and the first one at or above it. (The paper takes the first step at or above it.)

    >>> tokens_to([SuccessPoint(0, 0, 0.2), SuccessPoint(5, 100, 0.4), SuccessPoint(10, 300, 0.6)], 0.5)
    200.0
    """
    for i, point in enumerate(curve):
        if point.success >= threshold:
            if i == 0:
                return float(point.tokens)
            last = curve[i - 1]
            share = (threshold - last.success) / (point.success - last.success)
            return float(last.tokens + share * (point.tokens - last.tokens))
    return None


def success_by(curve: Sequence[SuccessPoint], tokens: float) -> float | None:
    """Returns the success rate when a run had used `tokens`, interpolated linearly; None if it used fewer.

    >>> success_by([SuccessPoint(0, 0, 0.2), SuccessPoint(5, 100, 0.4), SuccessPoint(10, 300, 0.6)], 200)
    0.5
    """
    for before, after in itertools.pairwise(curve):
        if before.tokens <= tokens <= after.tokens:
            share = (tokens - before.tokens) / max(after.tokens - before.tokens, 1)
            return before.success + share * (after.success - before.success)
    return None


# The 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom; with more, the last is a little too wide.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def paired_difference(
    values: Mapping[int, float | None], others: Mapping[int, float | None]
) -> tuple[float, float, float] | None:
    """Returns the mean difference over the seeds that both have, and its 95 % interval (Student's t); None with fewer than two.

    >>> [round(x, 3) for x in paired_difference({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.4})]
    [0.2, -1.071, 1.471]
    """
    found = [float(a) - float(b) for seed, a in values.items() if a is not None and (b := others.get(seed)) is not None]
    if len(found) < 2:
        return None
    mean = statistics.fmean(found)
    half = _T[min(len(found) - 1, len(_T)) - 1] * statistics.stdev(found) / math.sqrt(len(found))
    return mean, mean - half, mean + half


def savings(tokens: float | None, baseline: float | None) -> float | None:
    """Returns the share of the baseline's tokens that were saved. It is negative if more tokens were needed."""
    return None if tokens is None or not baseline else 1.0 - tokens / baseline


def horizon_series(rows: Rows) -> list[float]:
    """Returns K by update, in steps: the controller's real K after the update, or without one the K of the update's episodes."""
    series = [_first_known(row, "horizon/k_real", "horizon/k") for row in rows]
    return [k for k in series if k is not None]


def settled_at(series: Sequence[float], band: tuple[float, float]) -> int | None:
    """Returns the first update from which K stays in `band` (ends included) until the end; None if K ends outside.

    >>> settled_at([10, 21, 18, 22, 25], (20, 30))
    3
    """
    if not series:
        return None
    outside = [i for i, k in enumerate(series) if not band[0] <= k <= band[1]]
    first = outside[-1] + 1 if outside else 0
    return first if first < len(series) else None


def success_at(result: Mapping[str, Any], k: int) -> float | None:
    """Returns the success rate under a horizon of `k` steps (the paper's SR(K), Eq. 2), from an evaluation under a longer one.

    An episode that K stops is the beginning of the longer episode. So the successes within `k` steps are the successes under
    `k`. This is true only if the agent is not told K.

    Args:
        result: The `EvalResult` as a dict, from an evaluation with a horizon of at least `k`.
        k: The horizon.
    """
    lengths = result.get("success_lengths")
    if lengths is None:
        return None
    if not lengths:
        return 0.0
    within: int = sum(length <= k for length in lengths)
    return float(result["mean_at_k"]) * within / len(lengths)


def run_numbers(
    run: RunRecords,
    *,
    threshold: float,
    held_out: bool,
    trained_at: int | None = None,
    band: tuple[float, float] | None = None,
    equal_tokens: float | None = None,
) -> dict[str, float | None]:
    """Returns all numbers of one run that tables show. A number is None if the records do not have it.

    Args:
        run: The records of the run.
        threshold: The success rate for ``tokens_to_threshold``.
        held_out: Whether the success during training is that of held-out evaluations; see `success_curve`.
        trained_at: The run's fixed K, for ``success_at_k``.
        band: The plateau, in steps, for ``settled_at`` and ``share_in_band``.
        equal_tokens: The tokens for ``success_at_equal_tokens``.

    Returns:
        Shares in 0..1, tokens, steps and seconds, by the keys of `suite_table`'s columns.
    """
    rows, series = run.rows, horizon_series(run.rows)
    after = (run.evaluation.get("after") or {}).get("sampled") or {}
    greedy = (run.evaluation.get("after") or {}).get("greedy") or {}
    curve = run.curve(held_out=held_out)
    top = peak(curve)
    last_quarter = _window(series, _LAST_QUARTER)
    played = [
        k for row in _window(rows, _LAST_QUARTER) if (k := _first_known(row, "horizon/k_mean", "horizon/k")) is not None
    ]
    return {
        "mean_at_k": after.get("mean_at_k"),
        "best_at_k": after.get("best_at_k"),
        "greedy": greedy.get("mean_at_k"),
        "success_at_k": success_at(after, trained_at) if after and trained_at is not None else None,
        "peak": top.success if top else None,
        "tokens_at_peak": top.tokens if top else None,
        "tokens_to_threshold": tokens_to(curve, threshold),
        "success_at_equal_tokens": success_by(curve, equal_tokens) if equal_tokens is not None else None,
        "tokens_total": rows[-1]["tokens/total"] if rows else None,
        "tokens_per_update": _mean_of(rows, "tokens/update"),
        "tokens_middle": _mean_of(_window(rows, _MIDDLE), "tokens/update"),
        "tokens_end": _mean_of(_window(rows, _END), "tokens/update"),
        "seconds_per_update": _mean_of(rows, "time/update_s"),
        "final_k": series[-1] if series else None,
        "k_mean": statistics.fmean(played) if played else None,
        "k_std": statistics.pstdev(last_quarter) if last_quarter else None,
        "settled_at": settled_at(series, band) if band else None,
        "share_in_band": (
            statistics.fmean(band[0] <= k <= band[1] for k in last_quarter) if band and last_quarter else None
        ),
    }


def _window(values: Sequence[T], window: tuple[float, float]) -> Sequence[T]:
    """Returns the part of `values` between two shares of its length. A part that ends at 1 has at least the last value."""
    n = len(values)
    first, last = math.floor(window[0] * n), math.floor(window[1] * n)
    return values[min(first, n - 1) if n else 0 : last]


def _first_known(row: Mapping[str, Any], *names: str) -> float | None:
    return next((float(row[name]) for name in names if row.get(name) is not None), None)


def _mean_of(rows: Rows, name: str) -> float | None:
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    return statistics.fmean(values) if values else None
