"""What a run's records say: peak, tokens to a threshold, the plateau, how K settles, spreads over seeds, the tables.

Pure functions from the rows of ``metrics.jsonl`` and from ``evaluation.json`` to numbers. Left out: files, which
`harness.manifest` reads, and figures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

__all__ = [
    "Arm",
    "Column",
    "Plateau",
    "Run",
    "Spread",
    "SuccessPoint",
    "SuiteTable",
    "baseline_of",
    "horizon_series",
    "horizon_spread",
    "longer_than",
    "mean_tokens",
    "peak",
    "plateau",
    "run_numbers",
    "savings",
    "settled_at",
    "spread",
    "success_at",
    "success_curve",
    "suite_table",
    "tokens_to",
]

Rows = Sequence[Mapping[str, Any]]
T = TypeVar("T")

LEAST_TOLERANCE = 0.02
"""Success rates nearer than this count as equal, whatever the seeds' spread says."""
OFF_THE_PLATEAU = 0.7
"""The share of the largest fixed K's tokens within which an arm is to have learned the tasks that do not fit into K0."""
_LAST_QUARTER = (0.75, 1.0)
MIDDLE = (0.5, 0.85)
"""The paper's mid-training: steps 100 to 170 of 200, as shares of the run."""
END = (0.9, 1.0)


@dataclass(frozen=True)
class Run:
    """One training run's records.

    Attributes:
        seed: Its seed.
        rows: The rows of ``metrics.jsonl``, in order.
        evaluation: ``evaluation.json``; empty where the run has not ended or was not evaluated.
    """

    seed: int
    rows: Rows
    evaluation: Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """One setting of a suite and its runs, one per seed.

    Attributes:
        label: What the tables call it.
        settings: The fields of `GRPOConfig` that make it this arm.
        runs: Those that have ended.
    """

    label: str
    settings: Mapping[str, Any]
    runs: Sequence[Run]


class Spread(NamedTuple):
    """Mean, sample standard deviation (n - 1; None for one value) and number of values."""

    mean: float
    std: float | None
    n: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard deviation over seeds of the values there are; None where there is none.

    >>> spread([0.2, 0.4, None])
    Spread(mean=0.30000000000000004, std=0.1414213562373095, n=2)
    """
    known = [float(v) for v in values if v is not None and math.isfinite(v)]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


class SuccessPoint(NamedTuple):
    """A success rate in the course of training, after so many updates and training tokens."""

    updates: int
    tokens: float
    success: float


def success_curve(rows: Rows, before: float | None = None) -> list[SuccessPoint]:
    """The success rate by tokens: the held-out evaluations during training, where the run has them.

    Args:
        rows: With ``evaluation/mean_at_k`` in those of the updates after which the run was evaluated
            (``--eval-every``), and ``tokens/total``.
        before: The held-out success before training, which becomes the point at 0 tokens.

    Returns:
        The points, oldest first. Without held-out evaluations: the training episodes' success, as the mean of 5
        updates, which depends on each update's K and is no fair comparison between horizons.
    """
    evaluated = [
        SuccessPoint(row["update"] + 1, row["tokens/total"], row["evaluation/mean_at_k"])
        for row in rows
        if row.get("evaluation/mean_at_k") is not None
    ]
    if evaluated:
        return ([SuccessPoint(0, 0.0, before)] if before is not None else []) + evaluated
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
    """The highest point, the earliest of equals. The maximum of noisy points lies above the true one, for every arm."""
    return max(curve, key=lambda point: (point.success, -point.updates)) if curve else None


def tokens_to(curve: Sequence[SuccessPoint], threshold: float) -> float | None:
    """Training tokens until the success rate first reaches `threshold`; None if it never does.

    Between the last point below and the first at or above, tokens are interpolated linearly, since evaluations are some
    updates apart. (The paper takes the first step at or above.)

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


def savings(tokens: float | None, baseline: float | None) -> float | None:
    """The share of the baseline's tokens that were not needed; negative where more were."""
    return None if tokens is None or not baseline else 1.0 - tokens / baseline


def mean_tokens(rows: Rows, window: tuple[float, float] = (0.0, 1.0)) -> float | None:
    """Mean tokens per update over a part of the run, given as shares of its length: [start, end)."""
    values = [row["tokens/update"] for row in _window(rows, window)]
    return statistics.fmean(values) if values else None


def horizon_series(rows: Rows) -> list[float]:
    """K after each update, in steps: the controller's real K where it keeps one, else the K of the update's episodes."""
    series = [_first_known(row, "horizon/k_real", "horizon/k") for row in rows]
    return [k for k in series if k is not None]


def horizon_spread(series: Sequence[float]) -> float | None:
    """K's standard deviation over the updates of the run's last quarter (the paper's "last 50 steps" of 200)."""
    last = _window(series, _LAST_QUARTER)
    return statistics.pstdev(last) if last else None


def settled_at(series: Sequence[float], band: tuple[float, float]) -> int | None:
    """The first update from which K stays in `band` (ends included) to the end of the run; None if it ends outside.

    >>> settled_at([10, 21, 18, 22, 25], (20, 30))
    3
    """
    if not series:
        return None
    outside = [i for i, k in enumerate(series) if not band[0] <= k <= band[1]]
    first = outside[-1] + 1 if outside else 0
    return first if first < len(series) else None


def success_at(result: Mapping[str, Any], k: int) -> float | None:
    """The success rate under a horizon of `k` steps (the paper's SR(K), Eq. 2), from an evaluation under a longer one.

    An episode stopped by K is the longer episode's beginning, so the successes within `k` steps are those that it would
    have had under `k`. That holds where the agent is not told K.

    Args:
        result: An `EvalResult` as a dict, of an evaluation with a horizon of at least `k`.
        k: The horizon.
    """
    lengths = result.get("success_lengths")
    if lengths is None:
        return None
    if not lengths:
        return 0.0
    within: int = sum(length <= k for length in lengths)
    return float(result["mean_at_k"]) * within / len(lengths)


def longer_than(result: Mapping[str, Any], steps: int) -> float | None:
    """The success rate on tasks for which the expert takes more than `steps` steps; None where that is not known.

    >>> longer_than({"by_optimum": [[3, 8, 8], [14, 8, 6], [17, 8, 2]]}, 10)
    0.5
    """
    long = [(episodes, successes) for optimum, episodes, successes in result.get("by_optimum", ()) if optimum > steps]
    return sum(successes for _, successes in long) / sum(episodes for episodes, _ in long) if long else None


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


def run_numbers(
    run: Run,
    *,
    threshold: float,
    trained_at: int | None = None,
    band: tuple[float, float] | None = None,
    start: int | None = None,
) -> dict[str, float | None]:
    """All that the tables say about one run; None where the records do not tell.

    Args:
        run: Its records.
        threshold: The success rate that ``tokens_to_threshold`` asks for.
        trained_at: The run's fixed K, for ``success_at_k``.
        band: The plateau, in steps, for ``settled_at`` and ``share_in_band``.
        start: A K0, for ``longer_than_k0``.

    Returns:
        Shares in 0..1, tokens, steps and seconds, by the names of `suite_table`'s columns.
    """
    rows, series = run.rows, horizon_series(run.rows)
    after = (run.evaluation.get("after") or {}).get("sampled") or {}
    greedy = (run.evaluation.get("after") or {}).get("greedy") or {}
    before = (run.evaluation.get("before") or {}).get("sampled") or {}
    curve = success_curve(rows, before.get("mean_at_k"))
    top = peak(curve)
    last_quarter = _window(series, _LAST_QUARTER)
    return {
        "mean_at_k": after.get("mean_at_k"),
        "best_at_k": after.get("best_at_k"),
        "greedy": greedy.get("mean_at_k"),
        "success_at_k": success_at(after, trained_at) if after and trained_at is not None else None,
        "longer_than_k0": longer_than(after, start) if start is not None else None,
        "peak": top.success if top else None,
        "tokens_at_peak": top.tokens if top else None,
        "tokens_to_threshold": tokens_to(curve, threshold),
        "tokens_total": rows[-1]["tokens/total"] if rows else None,
        "tokens_per_update": mean_tokens(rows),
        "tokens_middle": mean_tokens(rows, MIDDLE),
        "tokens_end": mean_tokens(rows, END),
        "seconds_per_update": _mean_of(rows, "time/update_s"),
        "final_k": series[-1] if series else None,
        "k_mean": statistics.fmean(last_quarter) if last_quarter else None,
        "k_std": horizon_spread(series),
        "settled_at": settled_at(series, band) if band else None,
        "share_in_band": (
            statistics.fmean(band[0] <= k <= band[1] for k in last_quarter) if band and last_quarter else None
        ),
    }


Form = Literal["percent", "tokens", "steps", "seconds", "updates"]


@dataclass(frozen=True)
class Column:
    """A column of a suite's table: its key in `run_numbers`, its heading, and how its numbers are written."""

    key: str
    heading: str
    form: Form

    def show(self, value: Spread | None, seeds: int) -> str:
        """The cell as text: mean ± std over seeds; "1/3" tells that only one of three seeds had a value.

        >>> Column("mean_at_k", "mean@8", "percent").show(Spread(0.874, 0.012, 3), 3)
        '87.4 ± 1.2'
        >>> Column("tokens_total", "tokens", "tokens").show(Spread(1_234_000, None, 1), 3)
        '1.23M (1/3)'
        """
        if value is None:
            return "—"
        scale, unit, digits = _scale(self.form, value.mean)
        text = f"{value.mean * scale:.{digits}f}{unit}"
        if value.std is not None:
            text = f"{value.mean * scale:.{digits}f} ± {value.std * scale:.{digits}f}{unit}"
        return text if value.n == seeds else f"{text} ({value.n}/{seeds})"


@dataclass(frozen=True)
class SuiteTable:
    """A suite's results.

    Attributes:
        suite: Its name.
        columns: What was measured.
        rows: For each arm its label, its number of runs, and a spread per column.
        notes: Sentences on what the table shows: the plateau, the gap between two starts, rules.
        plateau: The band, of the saturation suite.
    """

    suite: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, int, tuple[Spread | None, ...]], ...]
    notes: tuple[str, ...]
    plateau: Plateau | None = None

    def cells(self) -> list[list[str]]:
        """The rows as text, label first."""
        return [
            [label, *(c.show(v, n) for c, v in zip(self.columns, values, strict=True))]
            for label, n, values in self.rows
        ]


_MEAN = Column("mean_at_k", "mean@k %", "percent")
_BEST = Column("best_at_k", "best@k %", "percent")
_GREEDY = Column("greedy", "greedy %", "percent")
_FINAL_K = Column("final_k", "final K", "steps")
_K_STD = Column("k_std", "K std, last quarter", "steps")
_TOKENS = Column("tokens_total", "tokens", "tokens")
_PER_UPDATE = Column("tokens_per_update", "tokens/update", "tokens")

_COLUMNS: dict[str, tuple[Column, ...]] = {
    "saturation": (
        Column("success_at_k", "success at its K %", "percent"),
        _MEAN,
        _BEST,
        _PER_UPDATE,
        Column("seconds_per_update", "seconds/update", "seconds"),
    ),
    "convergence": (
        _FINAL_K,
        Column("k_mean", "K, last quarter", "steps"),
        _K_STD,
        Column("settled_at", "in the band from update", "updates"),
        Column("share_in_band", "last quarter in the band %", "percent"),
        _MEAN,
        _TOKENS,
    ),
    "comparison": (
        _MEAN,
        _BEST,
        _GREEDY,
        Column("peak", "peak %", "percent"),
        Column("tokens_at_peak", "tokens at peak", "tokens"),
        Column("tokens_to_threshold", "tokens to threshold", "tokens"),
        Column("savings", "saved of baseline's %", "percent"),
        _PER_UPDATE,
        Column("tokens_middle", "in the middle", "tokens"),
        Column("tokens_end", "at the end", "tokens"),
    ),
    "percentile": (_MEAN, _BEST, _FINAL_K, _K_STD, _TOKENS),
    "headroom": (_MEAN, _BEST, _FINAL_K, _K_STD, _PER_UPDATE, _TOKENS),
    "ema": (_MEAN, _BEST, _FINAL_K, _K_STD, _TOKENS),
    "beyond": (
        _MEAN,
        _GREEDY,
        Column("longer_than_k0", "longer than K0 %", "percent"),
        _FINAL_K,
        _K_STD,
        _TOKENS,
        Column("savings", "saved of baseline's %", "percent"),
    ),
}


def baseline_of(arms: Sequence[Arm]) -> Arm | None:
    """The arm that savings are counted against: the one with the largest fixed K."""
    fixed = [arm for arm in arms if arm.settings.get("wrapper") == "fixed"]
    return max(fixed, key=lambda arm: int(arm.settings["k0"])) if fixed else None


def suite_table(
    suite: str, arms: Sequence[Arm], *, threshold: float = 0.5, band: tuple[float, float] | None = None
) -> SuiteTable:
    """A suite's table, mean and standard deviation over seeds.

    Args:
        suite: saturation, convergence, comparison, percentile, headroom, ema or beyond.
        arms: With the runs there are.
        threshold: The success rate to which tokens are counted. Savings compare each seed with the baseline's run of the
            same seed, so only seeds in which both reach it count; those of the suite beyond compare all tokens.
        band: The plateau that a saturation suite found, for convergence.
    """
    columns, baseline = _COLUMNS[suite], baseline_of(arms)
    start = min((int(k0) for arm in arms if (k0 := arm.settings.get("k0")) is not None), default=None)
    numbers = {
        arm.label: {
            run.seed: run_numbers(
                run,
                threshold=threshold,
                trained_at=int(arm.settings["k0"]) if arm.settings.get("wrapper") == "fixed" else None,
                band=band,
                start=start,
            )
            for run in arm.runs
        }
        for arm in arms
    }
    if baseline is not None:
        counted = "tokens_total" if suite == "beyond" else "tokens_to_threshold"
        reference = numbers[baseline.label]
        for by_seed in numbers.values():
            for seed, values in by_seed.items():
                values["savings"] = savings(values[counted], reference.get(seed, {}).get(counted))
    rows = tuple(
        (
            arm.label,
            len(arm.runs),
            tuple(spread([values.get(c.key) for values in numbers[arm.label].values()]) for c in columns),
        )
        for arm in arms
    )
    found = _plateau_of(arms, numbers) if suite == "saturation" else None
    return SuiteTable(suite, columns, rows, _notes(suite, arms, numbers, threshold, band, found), found)


def _plateau_of(arms: Sequence[Arm], numbers: Mapping[str, Mapping[int, Mapping[str, float | None]]]) -> Plateau | None:
    return plateau(
        {
            int(arm.settings["k0"]): [v for n in numbers[arm.label].values() if (v := n["success_at_k"]) is not None]
            for arm in arms
        }
    )


def _notes(
    suite: str,
    arms: Sequence[Arm],
    numbers: Mapping[str, Mapping[int, Mapping[str, float | None]]],
    threshold: float,
    band: tuple[float, float] | None,
    found: Plateau | None,
) -> tuple[str, ...]:
    notes: list[str] = []
    if found is not None:
        largest = max(int(arm.settings["k0"]) for arm in arms if arm.runs)
        to = f"{found.high}, the largest tried" if found.high == largest else str(found.high)
        notes.append(
            f"plateau: K from {found.low} (the frontier H*) to {to}; best at K = {found.best}, "
            f"within {100 * found.tolerance:.1f} points of it"
        )
    if suite == "convergence":
        if band is not None:
            notes.append(f"band: K from {band[0]:g} to {band[1]:g}, from the saturation suite")
        else:
            notes.append("band: unknown; the saturation suite, in the same folder, finds it")
        ends = {
            arm.label: s
            for arm in arms
            if arm.settings.get("wrapper") == "elastic"
            and (s := spread([n["k_mean"] for n in numbers[arm.label].values()]))
        }
        if len(ends) > 1:
            gap = max(s.mean for s in ends.values()) - min(s.mean for s in ends.values())
            notes.append(f"gap between {' and '.join(ends)} in the last quarter: {gap:.1f} steps")
    if suite == "comparison":
        baseline = baseline_of(arms)
        against = f"; savings against {baseline.label}, seed by seed" if baseline else ""
        held_out = any("evaluation/mean_at_k" in row for arm in arms for run in arm.runs for row in run.rows)
        notes.append(f"threshold: {100 * threshold:g} % {'held-out' if held_out else 'training'} success{against}")
        if not held_out:
            notes.append(
                "no held-out evaluations during training (--eval-every): peak and tokens are from training success"
            )
    if suite == "beyond" and (baseline := baseline_of(arms)) is not None:
        met = [
            f"{arm.label} {_off_the_plateau(numbers, arm.label, baseline.label)}" for arm in arms if arm is not baseline
        ]
        notes.append(
            f"off the false plateau, which is at least {baseline.label}'s success on the tasks longer than K0 for at most "
            f"{100 * OFF_THE_PLATEAU:g} % of its tokens, seed by seed: {', '.join(met)}"
        )
    return tuple(notes)


def _off_the_plateau(numbers: Mapping[str, Mapping[int, Mapping[str, float | None]]], arm: str, baseline: str) -> str:
    """On how many seeds an arm is as good as the baseline at tasks that do not fit into K0, and cheaper; such as "2/3"."""
    met = known = 0
    for seed, values in numbers[arm].items():
        own, other = values["longer_than_k0"], numbers[baseline].get(seed, {}).get("longer_than_k0")
        saved = values.get("savings")
        if own is not None and other is not None and saved is not None:
            known += 1
            met += own >= other and saved >= 1 - OFF_THE_PLATEAU
    return f"{met}/{known}"


def _window(values: Sequence[T], window: tuple[float, float]) -> Sequence[T]:
    """The part of `values` between two shares of its length; at least the last one of a part that ends at 1."""
    n = len(values)
    first, last = math.floor(window[0] * n), math.floor(window[1] * n)
    return values[min(first, n - 1) if n else 0 : last]


def _first_known(row: Mapping[str, Any], *names: str) -> float | None:
    return next((float(row[name]) for name in names if row.get(name) is not None), None)


def _mean_of(rows: Rows, name: str) -> float | None:
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    return statistics.fmean(values) if values else None


def _scale(form: Form, value: float) -> tuple[float, str, int]:
    """The factor, the unit and the number of digits that a number of a form is written with."""
    if form == "percent":
        return 100.0, "", 1
    if form == "tokens":
        for factor, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= factor:
                return 1 / factor, unit, 2
        return 1.0, "", 0
    return 1.0, "", {"steps": 1, "seconds": 2, "updates": 0}[form]
