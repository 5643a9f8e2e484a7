"""The numbers of runs, as pandas has them: each run's by arm and seed, their means and spreads, and the plateau.

A number that the records of a run do not have is NaN.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd

from harness.records.metrics import TOLERANCE, as_good
from harness.sweep.runs import Arm, Suite, SweptRun
from harness.sweep.suites import PAPER_SUITES, suite_file
from harness.terminal.texts import Table, table_of_rows

COLUMNS = {
    "before": ("mean@k before %", "percent"),
    "mean_at_k": ("mean@k %", "percent"),
    "best_at_k": ("best@k %", "percent"),
    "greedy": ("greedy %", "percent"),
    "success_at_k": ("success at its K %", "percent"),
    "peak": ("peak %", "percent"),
    "tokens_at_peak": ("tokens at peak", "tokens"),
    "tokens_to_threshold": ("tokens to threshold", "tokens"),
    "success_at_equal_tokens": ("at equal tokens %", "percent"),
    "savings": ("saved of baseline's %", "percent"),
    "tokens_total": ("tokens", "tokens"),
    "tokens_per_update": ("tokens/update", "tokens"),
    "final_k": ("final K", "steps"),
    "k_mean": ("K, last quarter", "steps"),
    "k_std": ("K std, last quarter", "steps"),
}
"""The heading of each number in tables, and its form."""

# The 97.5 % quantiles of Student's t with 1, 2, … 10 and infinitely many degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 1.960)


def success_curve(run: SweptRun, *, held_out: bool) -> pd.DataFrame:
    """Returns the success of a run in its course: a row per point, with `updates`, training `tokens` and `success`.

    The points are the held-out evaluations (``--eval-every``), with that before training at 0 tokens. Otherwise they
    are the training episodes' success, the mean of 5 updates; it depends on their K, so it compares horizons unfairly.
    """
    success = run.metric("evaluation/mean_at_k" if held_out else "rollout/success")
    if not held_out:
        success = success.rolling(5, min_periods=1).mean()
    tokens = run.metric("tokens/total").reindex(success.index)
    # An episode of training is played by the policy before its update, an evaluation by the one after it.
    points = pd.DataFrame({"updates": success.index + held_out, "tokens": tokens, "success": success})
    before = run.result("before").get("mean_at_k")
    if held_out and len(points) and before is not None:
        points.loc[-1] = [0, 0.0, before]
    return points.sort_index()


def _tokens_to(curve: pd.DataFrame, threshold: float) -> float:
    reached = np.flatnonzero(curve["success"] >= threshold)
    if not len(reached):
        return math.nan
    near = curve.iloc[max(0, reached[0] - 1) : reached[0] + 1]
    return float(np.interp(threshold, near["success"], near["tokens"]))


def _last_quarter(values: Any) -> Any:
    """The paper's "last 50 steps" of 200; at least the last value."""
    return values.iloc[3 * len(values) // 4 :]


def run_numbers(
    run: SweptRun, threshold: float, held_out: bool, fixed_k: int | None = None, equal_tokens: float = math.nan
) -> dict[str, float]:
    """Returns all numbers of one run that tables show, by the keys of `COLUMNS`: shares in 0..1, tokens and steps.

    `threshold` is a success rate for ``tokens_to_threshold``, `fixed_k` the run's fixed K for ``success_at_k``, and
    `equal_tokens` for ``success_at_equal_tokens``.
    """
    rows, curve = run.rows, success_curve(run, held_out=held_out)
    k = run.metric("horizon/k_real", "horizon/k")
    after = run.result()
    at_k = None
    if fixed_k is not None and "success_lengths" in after:  # an episode that K stops is the beginning of the longer
        at_k = after["mean_at_k"] * np.mean([n <= fixed_k for n in after["success_lengths"]] or 0.0)
    numbers = {
        "before": run.result("before").get("mean_at_k"),
        "mean_at_k": after.get("mean_at_k"),
        "best_at_k": after.get("best_at_k"),
        "greedy": run.result(how="greedy").get("mean_at_k"),
        "success_at_k": at_k,
        "tokens_to_threshold": _tokens_to(curve, threshold),
        "tokens_per_update": run.metric("tokens/update").mean(),
        "tokens_total": rows["tokens/total"].iloc[-1] if len(rows) else None,
        "final_k": k.iloc[-1] if len(k) else None,
        "k_mean": run.metric("horizon/k_mean", "horizon/k").reindex(_last_quarter(rows).index).mean(),
        "k_std": _last_quarter(k).std(ddof=0),
    }
    if len(curve):
        tokens, success = curve["tokens"], curve["success"]
        numbers["success_at_equal_tokens"] = np.interp(equal_tokens, tokens, success, left=math.nan, right=math.nan)
        numbers |= {"peak": success.max(), "tokens_at_peak": tokens[success.idxmax()]}  # of equal points the earliest
    return {key: math.nan if numbers.get(key) is None else float(numbers[key]) for key in COLUMNS}


def suite_numbers(suite: Suite) -> pd.DataFrame:
    """Returns the numbers of all runs of a suite that have ended, by arm and seed, with the keys of `COLUMNS`.

    ``savings`` compare with the run of the largest fixed K that has the same seed. In the paper's suites they count the
    tokens to the threshold, so a seed counts only if both reach it; in others all tokens. The tokens for
    ``success_at_equal_tokens`` are those that the cheapest run of the seed used until its success was last measured.
    """
    ended = {(arm.label, run.seed): (arm, run) for arm in suite.arms for run in arm.ended}
    index = pd.MultiIndex.from_tuples(ended, names=["arm", "seed"])
    curves = [success_curve(run, held_out=suite.held_out) for _, run in ended.values()]
    least = pd.Series([curve["tokens"].max() for curve in curves], index, dtype=float).groupby(level=1).min()
    rows = [
        run_numbers(run, suite.threshold, suite.held_out, arm.fixed_k, least[run.seed]) for arm, run in ended.values()
    ]
    numbers = pd.DataFrame(rows, index, list(COLUMNS), dtype=float)
    baseline = baseline_of(suite.arms)
    if baseline is not None and baseline.ended:
        tokens = numbers["tokens_to_threshold" if suite.name in PAPER_SUITES else "tokens_total"]
        numbers["savings"] = 1 - tokens / tokens[baseline.label].reindex(tokens.index, level=1)
    return numbers


def baseline_of(arms: Sequence[Arm]) -> Arm | None:
    return max((arm for arm in arms if arm.fixed_k is not None), key=lambda arm: arm.fixed_k or 0, default=None)


def paired_difference(values: pd.Series, others: pd.Series) -> tuple[float, float, float] | None:
    """Returns the mean difference over the seeds that both have, and its 95 % interval; None with fewer than two.

    The levels of the index before the last, the seed, name a stratum, such as an environment. The mean is that of the
    strata, and the interval Student's with Satterthwaite's degrees of freedom (Cochran, Sampling Techniques, eq. 5.16).

    >>> interval = paired_difference(pd.Series({0: 0.5, 1: 0.7}), pd.Series({0: 0.4, 1: 0.4}))
    >>> [round(x, 3) for x in interval]
    [0.2, -1.071, 1.471]
    """
    differences = (values - others).dropna()
    strata = differences.groupby(differences.index.droplevel(-1) if differences.index.nlevels > 1 else lambda _: "")
    counts, mean = strata.count(), float(strata.mean().mean())
    if not len(counts) or counts.min() < 2:
        return None
    variances = strata.var() / counts
    freedom = variances.sum() ** 2 / (variances**2 / (counts - 1)).sum() if variances.any() else math.inf
    t = np.interp(-1 / freedom, -1 / np.array([*range(1, len(_T)), math.inf]), _T)
    half = float(t * math.sqrt(variances.sum()) / len(counts))
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class Plateau:
    """The band of K in which success no longer rises, from `low`, which estimates the frontier H*, to `high`, in steps.

    `best` is the K with the highest mean success, and `tolerance` how far below it the lowest mean of the band may lie.
    """

    low: int
    high: int
    best: int
    tolerance: float


def plateau(success_by_k: Mapping[int, Sequence[float]]) -> Plateau | None:
    """Finds the band of K whose success by seed cannot be distinguished from the best; None with fewer than two K.

    It contains the best K and every K that is `as_good` and is reached from it without a gap. The standard error of the
    difference has a variance that is pooled over the seeds of all K, and is 0 with one seed each.
    """
    seeds = pd.DataFrame(((k, value) for k, values in success_by_k.items() for value in values), columns=["k", "value"])
    by_k = seeds.groupby("k")["value"]
    means, counts, deviations = by_k.mean(), by_k.count(), seeds["value"] - by_k.transform("mean")
    if len(means) < 2:
        return None
    best = means.idxmax()
    freedom = (counts - 1).sum()
    variance = (deviations**2).sum() / freedom if freedom else 0.0
    errors = np.sqrt(variance * (1 / counts + 1 / counts[best]))
    too_low = means.index[~as_good(means, means[best], errors)]
    below, above = too_low[too_low < best].max(), too_low[too_low > best].min()  # NaN if there is none
    band = [k for k in means.index if not (k <= below or k >= above)]
    return Plateau(band[0], band[-1], int(best), max(TOLERANCE, float(errors[band].max())))


@dataclass(frozen=True)
class SuiteTable:
    """The results of a suite: for each arm its number of `runs` that have ended, and its `spreads`.

    `spreads` has for each number, by the keys of `COLUMNS`, its ``mean`` over seeds, its sample standard deviation
    ``std`` (n - 1; NaN for one value) and its number of values ``count``. `plateau` is what the suite saturation found.
    """

    suite: str
    runs: pd.Series
    spreads: pd.DataFrame
    notes: Sequence[str]
    plateau: Plateau | None = None

    def tables(self) -> list[Table]:
        """Returns the tables that the suite's file names, with the number of runs ``n`` and the paper's columns."""
        file, tables = suite_file(self.suite), []
        for keys, paper in zip_longest(file.columns, file.paper):
            title = "Mean ± standard deviation over n seeds." if self.runs.max() > 1 else "One seed."
            headings, texts = [], {}
            if paper:
                title += f" {paper['title'][0].upper()}{paper['title'][1:]}; the tasks and models differ, so compare "
                title += "order and shape, not level."
                headings, texts = [f"paper: {column}" for column in paper["columns"]], paper["rows"]
            rows = []
            for label, n in self.runs.items():
                row = {"arm": label, "n": str(n)}
                for key in keys:
                    heading, form = COLUMNS[key]
                    row[heading] = cell(form, *self.spreads.loc[label, key], seeds=n)
                rows.append(row | dict(zip(headings, texts.get(label, ()), strict=False)))
            tables.append(table_of_rows(title, rows))
        return tables


def cell(form: str, mean: float, std: float, count: float, *, seeds: int) -> str:
    """Returns the text of a cell: mean ± standard deviation over seeds. "(1/3)": one of three seeds has a value.

    >>> cell("percent", 0.874, 0.012, 3, seeds=3), cell("tokens", 1_234_000, math.nan, 1, seeds=3)
    ('87.4 ± 1.2', '1.23M (1/3)')
    """
    if not count:
        return "—"
    scale, unit, digits = {"percent": 100.0}.get(form, 1.0), "", 0 if form == "tokens" else 1
    if form == "tokens":
        for size, letter in ((1e3, "k"), (1e6, "M"), (1e9, "B")):
            if abs(mean) >= size:
                scale, unit, digits = 1 / size, letter, 2
    spread = "" if math.isnan(std) else f" ± {std * scale:.{digits}f}"
    return f"{mean * scale:.{digits}f}{spread}{unit}" + ("" if count == seeds else f" ({count:.0f}/{seeds})")


def suite_table(suite: Suite) -> SuiteTable:
    numbers = suite_numbers(suite)
    labels = [arm.label for arm in suite.arms]
    spreads = numbers.groupby(level=0, sort=False).agg(["mean", "std", "count"]).reindex(labels)
    spreads = spreads.fillna({(key, "count"): 0 for key in COLUMNS})
    band, notes = None, []
    if suite.name == "saturation":
        by_k = {arm.fixed_k: numbers["success_at_k"].get(arm.label, pd.Series()).dropna() for arm in suite.arms}
        band = plateau({k: list(values) for k, values in by_k.items() if k is not None})
    if band is not None:
        tried = max(arm.fixed_k or 0 for arm in suite.arms if arm.ended)
        notes.append(
            f"plateau: K from {band.low} (the frontier H*) to "
            f"{band.high}{', the largest tried' * (band.high == tried)}; best at K = {band.best}, within "
            f"{100 * band.tolerance:.1f} points of it"
        )
    if suite.name == "convergence":
        elastic = [arm.label for arm in suite.arms if arm.settings.get("wrapper") == "elastic"]
        ends = spreads.loc[elastic, ("k_mean", "mean")].dropna()
        if len(ends) > 1:
            gap = ends.max() - ends.min()
            notes.append(f"gap between {' and '.join(ends.index)} in the last quarter: {gap:.1f} steps")
    if suite.name == "comparison" or suite.name not in PAPER_SUITES:
        notes += _success_notes(suite, numbers)
    ended = [(arm.label, run.result()) for arm in suite.arms for run in arm.ended]
    told = [(label, one) for label, one in ended if "knee" in (one.get("saturation") or ())]  # old ones lack it
    if len(told) == 1:
        notes.append(told[0][1]["saturation"]["advice"])
    elif told:
        sample = "tasks: {tasks}, episodes: {episodes}".format(**told[0][1])
        by_arm: dict[str, list[str]] = {}
        for label, one in told:
            by_arm.setdefault(label, []).append(str(one["saturation"]["knee"] or "no success"))
        ks = "; ".join(f"{label}: {', '.join(of)}" for label, of in by_arm.items())
        notes.append(f"K to deploy, the smallest surely at most 2 points below the evaluation's ({sample}): {ks}")
    return SuiteTable(suite.name, pd.Series({arm.label: len(arm.ended) for arm in suite.arms}), spreads, notes, band)


def _success_notes(suite: Suite, numbers: pd.DataFrame) -> list[str]:
    notes = [f"threshold: {100 * suite.threshold:g} % {'held-out' if suite.held_out else 'training'} success"]
    baseline = baseline_of(suite.arms)
    if suite.name not in PAPER_SUITES:
        notes[0] += "; equal tokens: those of the arm that used fewest, seed by seed"
        final = numbers["mean_at_k"]
        means = final.groupby(level=0, sort=False).mean().dropna()
        reference = baseline.label if baseline and baseline.ended else next(iter(means.index), "")
        against = []
        for label in means.index[means.index != reference]:
            if (difference := paired_difference(final[label], final[reference])) is not None:
                against.append("{} {:+.1f} ({:+.1f} to {:+.1f})".format(label, *(100 * x for x in difference)))
        if against:
            notes.append(
                f"final success in points from {reference}, seed by seed, with 95 % intervals: {', '.join(against)}"
            )
    if baseline is not None:
        notes[0] += f"; savings against {baseline.label}, seed by seed"
    if not suite.held_out:
        notes.append(
            "there were no held-out evaluations during training (--eval-every): success in the course of training is "
            "that of the training episodes"
        )
    return notes
