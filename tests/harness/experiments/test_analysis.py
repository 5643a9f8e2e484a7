"""Every number of the tables, by hand-computed examples."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness.experiments.analysis import (
    Arm,
    RunRecords,
    Spread,
    SuccessPoint,
    horizon_series,
    paired_difference,
    peak,
    run_numbers,
    settled_at,
    spread,
    success_at,
    success_by,
    success_curve,
    tokens_to,
)
from harness.experiments.plateau import plateau
from harness.experiments.suite_table import Column, suite_table


def rows_of(
    *,
    k: list[float],
    tokens: list[float] | None = None,
    success: list[float | None] | None = None,
    held_out: dict[int, float] | None = None,
) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl: one per K, 100 tokens each unless said otherwise."""
    tokens = tokens or [100.0] * len(k)
    rows: list[dict[str, Any]] = []
    for i in range(len(k)):
        row: dict[str, Any] = {
            "update": i,
            "horizon/k": k[i],
            "tokens/update": tokens[i],
            "tokens/total": sum(tokens[: i + 1]),
            "time/update_s": 2.0,
        }
        row["rollout/success"] = success[i] if success else 0.5
        if held_out and i in held_out:
            row["evaluation/mean_at_k"] = held_out[i]
        rows.append(row)
    return rows


def evaluation(mean: float, lengths: list[int], *, before: float = 0.1) -> dict[str, Any]:
    result = {"mean_at_k": mean, "best_at_k": mean + 0.1, "success_lengths": lengths}
    return {
        "before": {"sampled": {"mean_at_k": before}, "greedy": {}},
        "after": {"sampled": result, "greedy": {"mean_at_k": 0.9}},
    }


def test_the_spread_is_the_sample_s() -> None:
    # mean 4, deviations -2, 0, 2: variance (4 + 0 + 4) / 2 = 4
    assert spread([2.0, 4.0, 6.0]) == Spread(4.0, 2.0, 3)
    assert spread([None, 3.0, math.nan]) == Spread(3.0, None, 1)
    assert spread([None]) is None


def test_the_curve_takes_held_out_evaluations_and_starts_before_training() -> None:
    rows = rows_of(k=[10] * 4, held_out={1: 0.4, 3: 0.6})
    assert success_curve(rows, before=0.2, held_out=True) == [
        SuccessPoint(0, 0.0, 0.2),
        SuccessPoint(2, 200.0, 0.4),
        SuccessPoint(4, 400.0, 0.6),
    ]


def test_without_evaluations_the_curve_is_the_mean_of_five_training_updates() -> None:
    rows = rows_of(k=[10] * 7, success=[0.0, 0.1, 0.2, None, 0.3, 0.4, 0.5])
    curve = success_curve(rows, before=0.9, held_out=False)
    assert [point.updates for point in curve] == [1, 2, 3, 5, 6, 7]  # update 3 had no valid episode
    assert [round(point.success, 6) for point in curve] == [0.0, 0.05, 0.1, 0.15, 0.2, 0.3]
    # the last: (0.1 + 0.2 + 0.3 + 0.4 + 0.5) / 5
    assert success_curve(rows, before=0.9, held_out=True) == []


def test_the_peak_is_the_earliest_of_equals() -> None:
    points = [SuccessPoint(1, 10, 0.3), SuccessPoint(2, 20, 0.7), SuccessPoint(3, 30, 0.7)]
    assert peak(points) == points[1]
    assert peak([]) is None


def test_tokens_to_a_threshold_are_interpolated_and_first_crossing_counts() -> None:
    curve = [SuccessPoint(0, 0, 0.2), SuccessPoint(5, 100, 0.4), SuccessPoint(9, 300, 0.6), SuccessPoint(12, 350, 0.5)]
    assert tokens_to(curve, 0.45) == pytest.approx(150)  # a quarter of the way from 100 to 300
    assert tokens_to(curve, 0.6) == 300
    assert tokens_to(curve, 0.1) == 0
    assert tokens_to(curve, 0.61) is None
    assert tokens_to([], 0.5) is None


def test_tokens_per_update_of_a_part_of_the_run() -> None:
    rows = rows_of(k=[10] * 10, tokens=[float(i) for i in range(10)])
    numbers = run_numbers(RunRecords(0, rows, {}), threshold=0.5, held_out=False)
    assert [numbers[f"tokens_{part}"] for part in ("per_update", "middle", "end")] == [
        4.5,
        6.0,
        9.0,
    ]  # the middle: 5, 6, 7


def test_k_is_the_real_one_where_the_controller_keeps_one() -> None:
    rows = rows_of(k=[10, 11, 12, 13])
    rows[1]["horizon/k_real"] = 11.6
    rows[2]["horizon/k_real"] = None
    assert horizon_series(rows) == [10.0, 11.6, 12.0, 13.0]
    assert horizon_series([{"update": 0}]) == []


def test_k_settles_where_it_last_enters_the_band() -> None:
    assert settled_at([10, 21, 18, 20, 30], (20, 30)) == 3
    assert settled_at([25, 26], (20, 30)) == 0
    assert settled_at([25, 31], (20, 30)) is None
    assert settled_at([], (20, 30)) is None


def test_success_under_a_shorter_horizon_counts_the_successes_within_it() -> None:
    # 10 episodes, 4 successes of 3, 6, 6 and 12 steps
    result = {"mean_at_k": 0.4, "success_lengths": [3, 6, 6, 12]}
    assert success_at(result, 5) == pytest.approx(0.1)
    assert success_at(result, 6) == pytest.approx(0.3)
    assert success_at(result, 50) == pytest.approx(0.4)
    assert success_at({"mean_at_k": 0.0, "success_lengths": []}, 50) == 0.0
    assert success_at({"mean_at_k": 0.4}, 5) is None


def test_the_plateau_is_what_one_standard_error_does_not_tell_from_the_best() -> None:
    # means .15, .55, .61, .60; variances .005, .005, .0002, .0002 with one degree of freedom each:
    # pooled .0104 / 4 = .0026; standard error of a difference of two means of two: sqrt(.0026) = .051
    seeds = {10: [0.1, 0.2], 20: [0.5, 0.6], 30: [0.6, 0.62], 40: [0.59, 0.61]}
    found = plateau(seeds)
    assert found is not None
    assert (found.low, found.high, found.best) == (30, 40, 30)  # 20 lies .06 below
    assert found.tolerance == pytest.approx(math.sqrt(0.0026))
    wider = plateau(seeds, least=0.06)
    assert wider is not None
    assert (wider.low, wider.high) == (20, 40)


def test_the_plateau_has_no_gaps_and_needs_no_second_seed() -> None:
    found = plateau({10: [0.79], 20: [0.5], 30: [0.8], 40: [0.79], 50: [0.7]})
    assert found is not None
    assert (found.low, found.high, found.best, found.tolerance) == (30, 40, 30, 0.02)
    assert plateau({10: [], 20: [0.8, 0.9]}) is None  # one arm shows no level


def test_a_run_s_numbers() -> None:
    rows = rows_of(k=[10, 20, 30, 30, 30, 30, 26, 30], held_out={3: 0.5, 7: 0.7})
    run = RunRecords(0, rows, evaluation(0.8, [2, 4, 8, 20]))
    numbers = run_numbers(run, threshold=0.6, held_out=True, trained_at=8, band=(20.0, 30.0))
    assert numbers["mean_at_k"] == 0.8
    assert numbers["best_at_k"] == pytest.approx(0.9)
    assert numbers["greedy"] == 0.9
    assert numbers["success_at_k"] == pytest.approx(0.6)  # 3 of 4 successes within 8 steps
    assert (numbers["peak"], numbers["tokens_at_peak"]) == (0.7, 800.0)
    assert numbers["tokens_to_threshold"] == pytest.approx(600.0)  # half way from 400 to 800
    assert numbers["tokens_total"] == 800.0
    assert numbers["seconds_per_update"] == 2.0
    assert (numbers["final_k"], numbers["k_mean"], numbers["k_std"]) == (30.0, 28.0, 2.0)
    assert (numbers["settled_at"], numbers["share_in_band"]) == (1, 1.0)


def test_a_run_that_was_not_evaluated_leaves_its_cells_empty() -> None:
    numbers = run_numbers(RunRecords(0, [], {}), threshold=0.5, held_out=True, trained_at=8, band=(20.0, 30.0))
    assert set(numbers.values()) == {None}


def two_seeds(*curves: dict[int, float]) -> list[RunRecords]:
    return [
        RunRecords(i, rows_of(k=[15] * 4, held_out=c), evaluation(0.8, [3], before=0.0)) for i, c in enumerate(curves)
    ]


def test_the_comparison_saves_seed_by_seed_against_the_largest_fixed_k() -> None:
    arms = [
        Arm("K=15", {"wrapper": "fixed", "k0": 15}, two_seeds({3: 0.4}, {3: 0.4})),
        Arm("K=50", {"wrapper": "fixed", "k0": 50}, two_seeds({1: 0.5}, {3: 0.5})),  # 200 and 400 tokens
        Arm("elastic", {"wrapper": "elastic"}, two_seeds({0: 0.5}, {0: 0.5})),  # 100 and 100 tokens
    ]
    table = suite_table("comparison", arms, threshold=0.5)
    at = {c.key: i for i, c in enumerate(table.columns)}
    cells = {label: values for label, _, values in table.rows}
    assert cells["K=15"][at["tokens_to_threshold"]] is None
    assert cells["K=15"][at["savings"]] is None
    saved = cells["elastic"][at["savings"]]
    assert saved is not None
    assert saved.mean == pytest.approx((0.5 + 0.75) / 2)
    assert cells["K=50"][at["savings"]] == Spread(0.0, 0.0, 2)
    assert "savings against K=50" in table.notes[0]
    assert len(table.notes) == 1  # there were held-out evaluations


def test_the_saturation_table_finds_the_band_from_success_at_each_k() -> None:
    arms = [
        Arm(f"K={k}", {"wrapper": "fixed", "k0": k}, [RunRecords(0, rows_of(k=[k]), evaluation(0.8, [5, 9, 15, 16]))])
        for k in (8, 10, 20, 30)
    ]
    table = suite_table("saturation", arms)
    assert [values[0].mean for _, _, values in table.rows if values[0]] == pytest.approx([0.2, 0.4, 0.8, 0.8])
    assert table.plateau is not None
    assert (table.plateau.low, table.plateau.high) == (20, 30)
    assert table.notes == (
        "plateau: K from 20 (the frontier H*) to 30, the largest tried; best at K = 20, within 2.0 points of it",
    )


def test_convergence_tells_the_gap_between_its_starts() -> None:
    arms = [
        Arm("elastic K0=10", {"wrapper": "elastic", "k0": 10}, [RunRecords(0, rows_of(k=[10, 20, 25, 26]), {})]),
        Arm("elastic K0=50", {"wrapper": "elastic", "k0": 50}, [RunRecords(0, rows_of(k=[50, 40, 35, 29.5]), {})]),
        Arm("ScalingInter", {"wrapper": "linear"}, [RunRecords(0, rows_of(k=[10, 20, 30, 40]), {})]),
    ]
    table = suite_table("convergence", arms, band=(25, 30))
    assert "gap between elastic K0=10 and elastic K0=50 in the last quarter: 3.5 steps" in table.notes
    at = [c.key for c in table.columns].index("settled_at")
    assert [values[at] and values[at].mean for _, _, values in table.rows] == [2, 3, None]


def test_learning_compares_at_equal_tokens_and_with_the_best_fixed_k_seed_by_seed() -> None:
    def run(seed: int, final: float, *, tokens: float, half: float) -> RunRecords:
        rows = rows_of(k=[20, 20], tokens=[tokens / 2, tokens / 2], held_out={0: half, 1: final})
        return RunRecords(seed, rows, evaluation(final, [3], before=0.0))

    arms = [
        Arm("K=15", {"wrapper": "fixed", "k0": 15}, [run(s, 0.5, tokens=200, half=0.4) for s in (0, 1)]),
        Arm("K=50", {"wrapper": "fixed", "k0": 50}, [run(s, 0.6, tokens=800, half=0.4) for s in (0, 1)]),
        Arm("elastic", {"wrapper": "elastic"}, [run(s, 0.7 + 0.2 * s, tokens=400, half=0.6) for s in (0, 1, 2)]),
    ]
    table = suite_table("learning", arms, threshold=0.4)
    at = {c.key: i for i, c in enumerate(table.columns)}
    cells = {label: values for label, _, values in table.rows}
    equal = {label: values[at["success_at_equal_tokens"]] for label, values in cells.items()}
    assert [round(found.mean, 6) for found in equal.values() if found] == [
        0.5,
        0.2,
        pytest.approx((0.6 + 0.6 + 1.1) / 3),
    ]
    assert cells["elastic"][at["savings"]] == Spread(0.5, 0.0, 2)
    # differences of .1 and .3 from K=50, the best fixed K: .2 and 12.706 * .1414 / sqrt 2 = 1.271 to both sides
    assert table.notes[1].endswith("95 % intervals: K=15 -10.0 (-10.0 to -10.0), elastic +20.0 (-107.1 to +147.1)")
    assert paired_difference({0: 0.5}, {0: 0.4}) is None
    assert success_by([SuccessPoint(0, 0, 0.2), SuccessPoint(5, 100, 0.4)], 101) is None


@pytest.mark.parametrize(("held_out", "what"), [({1: 0.4}, "held-out"), (None, "training")])
def test_the_cheapest_arm_has_a_success_at_equal_tokens_of_the_kind_that_the_note_names(
    held_out: dict[int, float] | None, what: str
) -> None:
    """It was empty: the arm's last evaluation came before its last tokens. And training success was called held-out."""
    rows = rows_of(k=[20] * 3, held_out=held_out, success=[0.4, 0.4, 0.4])
    arms = [Arm("K=15", {"wrapper": "fixed", "k0": 15}, [RunRecords(0, rows, evaluation(0.5, [3]))])]
    table = suite_table("pretrained", arms)
    equal = table.rows[0][2][[c.key for c in table.columns].index("success_at_equal_tokens")]
    assert equal is not None
    assert equal.mean == pytest.approx(0.4)
    assert f"threshold: 50 % {what} success" in table.notes[0]
    assert ("no held-out evaluations" in table.notes[-1]) == (held_out is None)


def test_cells_show_how_many_seeds_had_a_value() -> None:
    tokens = Column("tokens_to_threshold", "tokens", "tokens")
    assert tokens.show(Spread(1_234_000, 10_000, 2), 3) == "1.23 ± 0.01M (2/3)"
    assert tokens.show(Spread(900, None, 1), 1) == "900"
    assert tokens.show(None, 3) == "—"
    assert Column("final_k", "K", "steps").show(Spread(28.13, 0.5, 3), 3) == "28.1 ± 0.5"
