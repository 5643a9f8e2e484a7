"""The table of each suite: numbers of its arms, as mean and standard deviation over seeds, and notes on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.experiments.analysis import Arm, Spread, is_held_out, paired_difference, run_numbers, savings, spread
from harness.experiments.plateau import Plateau, plateau

__all__ = ["Column", "SuiteTable", "baseline_of", "suite_table"]

Form = Literal["percent", "tokens", "steps", "seconds", "updates"]


@dataclass(frozen=True)
class Column:
    """A column of a suite's table: its key in `run_numbers`, its heading, and the form of its numbers."""

    key: str
    heading: str
    form: Form

    def show(self, value: Spread | None, seeds: int) -> str:
        """Returns the text of a cell: mean ± standard deviation over seeds. "(1/3)" means that one of three seeds has a value.

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
    """The results of a suite.

    Attributes:
        suite: The name of the suite.
        columns: The columns.
        rows: For each arm its label, its number of runs, and a spread per column.
        notes: Sentences about the table, such as the plateau, the gap between two starts, and rules.
        plateau: The plateau that the suite saturation finds; None for the other suites.
    """

    suite: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, int, tuple[Spread | None, ...]], ...]
    notes: tuple[str, ...]
    plateau: Plateau | None = None

    def cells(self) -> list[list[str]]:
        """Returns the rows as text. The label comes first."""
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
_PER_TOKEN = (
    _MEAN,
    Column("success_at_equal_tokens", "at equal tokens %", "percent"),
    Column("tokens_to_threshold", "tokens to threshold", "tokens"),
    _FINAL_K,
    _TOKENS,
    Column("savings", "saved of baseline's %", "percent"),
)

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
    "learning": _PER_TOKEN,
    "pretrained": _PER_TOKEN,
    "recurring": _PER_TOKEN,
}


def baseline_of(arms: Sequence[Arm]) -> Arm | None:
    """Returns the arm with the largest fixed K. Savings are relative to it."""
    fixed = [arm for arm in arms if arm.settings.get("wrapper") == "fixed"]
    return max(fixed, key=lambda arm: int(arm.settings["k0"])) if fixed else None


def suite_table(
    suite: str, arms: Sequence[Arm], *, threshold: float = 0.5, band: tuple[float, float] | None = None
) -> SuiteTable:
    """Makes the table of a suite, with mean and standard deviation over seeds.

    Args:
        suite: One of `harness.experiments.suites.SUITES`.
        arms: The arms, with the runs that have ended.
        threshold: The success rate up to which tokens are counted. Savings compare each run with the baseline's run of the
            same seed, so a seed counts only if both reach the threshold. In learning, pretrained and recurring they
            compare all tokens.
        band: The plateau that a saturation suite found. The suite convergence uses it.
    """
    columns, baseline = _COLUMNS[suite], baseline_of(arms)
    held_out = is_held_out(run.rows for arm in arms for run in arm.runs)
    least = _least_tokens(arms, held_out=held_out) if columns is _PER_TOKEN else {}
    numbers = {
        arm.label: {
            run.seed: run_numbers(
                run,
                threshold=threshold,
                held_out=held_out,
                trained_at=int(arm.settings["k0"]) if arm.settings.get("wrapper") == "fixed" else None,
                band=band,
                equal_tokens=least.get(run.seed),
            )
            for run in arm.runs
        }
        for arm in arms
    }
    if baseline is not None:
        counted = "tokens_total" if columns is _PER_TOKEN else "tokens_to_threshold"
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
    of_threshold = f"threshold: {100 * threshold:g} % {'held-out' if held_out else 'training'} success"
    notes = _notes(suite, arms, numbers, of_threshold, band, found)
    if not held_out and (suite == "comparison" or columns is _PER_TOKEN):
        notes.append(
            "there were no held-out evaluations during training (--eval-every): success in the course of training is that of "
            "the training episodes"
        )
    return SuiteTable(suite, columns, rows, tuple(notes), found)


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
    of_threshold: str,
    band: tuple[float, float] | None,
    found: Plateau | None,
) -> list[str]:
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
            notes.append("band: unknown; run the saturation suite with the same settings in the same folder to find it")
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
        notes.append(f"{of_threshold}{against}")
    if _COLUMNS[suite] is _PER_TOKEN:
        notes += _learning_notes(arms, numbers, of_threshold)
    return notes


def _least_tokens(arms: Sequence[Arm], *, held_out: bool) -> dict[int, float]:
    """For each seed, the tokens of the run that used fewest until its success was last measured."""
    found: dict[int, float] = {}
    for run in (run for arm in arms for run in arm.runs):
        if curve := run.curve(held_out=held_out):
            found[run.seed] = min(found.get(run.seed, math.inf), curve[-1].tokens)
    return found


def _learning_notes(
    arms: Sequence[Arm], numbers: Mapping[str, Mapping[int, Mapping[str, float | None]]], of_threshold: str
) -> list[str]:
    """Compares the final success of each arm with that of the best fixed K, seed by seed."""

    def final(arm: Arm) -> dict[int, float | None]:
        return {seed: values["mean_at_k"] for seed, values in numbers[arm.label].items()}

    known = [(s.mean, arm) for arm in arms if (s := spread(list(final(arm).values())))]
    fixed = [pair for pair in known if pair[1].settings.get("wrapper") == "fixed"]
    notes = [f"{of_threshold}; equal tokens: those of the arm that used fewest, seed by seed"]
    if not fixed:
        return notes
    best = max(fixed, key=lambda pair: pair[0])[1]
    against = []
    for _, arm in known:
        difference = paired_difference(final(arm), final(best)) if arm is not best else None
        if difference is not None:
            mean, low, high = (100 * value for value in difference)
            against.append(f"{arm.label} {mean:+.1f} ({low:+.1f} to {high:+.1f})")
    if against:
        notes.append(
            f"final success in points against {best.label}, the best fixed K, seed by seed, with 95 % intervals: "
            f"{', '.join(against)}"
        )
    return notes


def _scale(form: Form, value: float) -> tuple[float, str, int]:
    """Returns the factor, the unit and the number of digits with which a number is written."""
    if form == "percent":
        return 100.0, "", 1
    if form == "tokens":
        for factor, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= factor:
                return 1 / factor, unit, 2
        return 1.0, "", 0
    return 1.0, "", {"steps": 1, "seconds": 2, "updates": 0}[form]
