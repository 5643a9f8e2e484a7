"""Every number of the tables, against hand-computed examples."""

import math
from pathlib import Path

import pandas as pd
import pytest

from harness.sweep.analysis import paired_difference, plateau, run_numbers, success_curve, suite_table
from harness.sweep.runs import Arm, Suite, SweptRun


def a_run(seed=0, *, k, tokens=None, success=None, held_out=(), after=None, lengths=None, before=0.0):
    """A run of an update per K, with 100 tokens each unless said otherwise, which has ended if `after` is given."""
    rows = {"update": range(len(k)), "horizon/k": k, "tokens/update": tokens or [100.0] * len(k), "time/update_s": 2.0}
    table = pd.DataFrame(rows, dtype=float)
    table["tokens/total"] = table["tokens/update"].cumsum()
    table["rollout/success"] = success or 0.5
    if held_out:
        table["evaluation/mean_at_k"] = pd.Series(held_out)
    result = {"mean_at_k": after, "best_at_k": (after or 0) + 0.1, "success_lengths": lengths or [3]}
    ended = {"before": {"sampled": {"mean_at_k": before}}, "after": {"sampled": result, "greedy": {"mean_at_k": 0.9}}}
    return SweptRun(Path(f"seed{seed}"), {"seed": seed}, table.astype(float), ended if after is not None else {})


def table(name, arms, *, threshold=0.5):
    made = [Arm(label, settings, runs) for label, (settings, runs) in arms.items()]
    return suite_table(Suite("", name, "", "", threshold, made, []))


def fixed(k):
    return {"wrapper": "fixed", "k0": k}


def test_the_curve_takes_held_out_evaluations_and_starts_before_training():
    curve = success_curve(a_run(k=[10] * 4, held_out={1: 0.4, 3: 0.6}, after=0.6, before=0.2), held_out=True)
    assert curve.to_numpy().tolist() == [[0, 0, 0.2], [2, 200, 0.4], [4, 400, 0.6]]


def test_without_evaluations_the_curve_is_the_mean_of_five_training_updates():
    run = a_run(k=[10] * 7, success=[0.0, 0.1, 0.2, None, 0.3, 0.4, 0.5], after=0.9, before=0.9)
    curve = success_curve(run, held_out=False)
    assert list(curve["updates"]) == [0, 1, 2, 4, 5, 6]  # update 3 had no valid episode
    # The last: (.1 + .2 + .3 + .4 + .5) / 5.
    assert list(curve["success"]) == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.3])
    assert success_curve(run, held_out=True).empty


def test_a_run_s_numbers():
    run = a_run(
        k=[10, 20, 30, 30, 30, 30, 26, 30],
        held_out={3: 0.5, 5: 0.7, 7: 0.7},
        after=0.8,
        lengths=[2, 4, 8, 20],
        before=0.1,
    )
    found = run_numbers(run, 0.6, True, fixed_k=8, equal_tokens=500.0)
    assert found == pytest.approx({
        "before": 0.1, "mean_at_k": 0.8, "best_at_k": 0.9, "greedy": 0.9,
        "success_at_k": 0.6,  # 3 of 4 successes within 8 steps
        "peak": 0.7, "tokens_at_peak": 600, "tokens_to_threshold": 500,  # the earlier peak; half way from 400 to 600
        "success_at_equal_tokens": 0.6, "savings": math.nan, "tokens_total": 800, "tokens_per_update": 100,
        "final_k": 30, "k_mean": 28, "k_std": 2,
    }, nan_ok=True)  # fmt: skip


def test_the_plateau_is_what_one_standard_error_does_not_tell_from_the_best():
    # means .15, .55, .61, .60; variances .005, .005, .0002, .0002 with one degree of freedom each:
    # pooled .0104 / 4 = .0026; standard error of a difference of two means of two: sqrt(.0026) = .051
    seeds = {10: [0.1, 0.2], 20: [0.5, 0.6], 30: [0.6, 0.62], 40: [0.59, 0.61]}
    found = plateau(seeds)
    assert (found.low, found.high, found.best) == (30, 40, 30)  # 20 lies .06 below
    assert found.tolerance == pytest.approx(math.sqrt(0.0026))
    one = plateau({10: [0.79], 20: [0.5], 30: [0.8], 40: [0.79], 50: [0.7]})  # no gap, and no second seed
    assert (one.low, one.high, one.best, one.tolerance) == (30, 40, 30, 0.02)
    below = plateau({10: [0.5], 20: [0.79], 30: [0.8]})
    assert (below.low, below.high, below.best) == (20, 30, 30)
    assert plateau({10: [], 20: [0.8, 0.9]}) is None  # one arm shows no level


def test_the_comparison_saves_seed_by_seed_against_the_largest_fixed_k():
    def runs(*curves):
        return [a_run(i, k=[15] * 4, held_out=curve, after=0.8) for i, curve in enumerate(curves)]

    found = table("comparison", {
        "K=15": (fixed(15), runs({3: 0.4}, {3: 0.4})),
        "K=50": (fixed(50), runs({1: 0.5}, {3: 0.5})),  # 200 and 400 tokens
        "elastic": ({"wrapper": "elastic"}, runs({0: 0.5}, {0: 0.5})),  # 100 and 100 tokens
    })  # fmt: skip
    assert list(found.spreads["savings"]["count"]) == [0, 2, 2]
    assert list(found.spreads["savings"]["mean"])[1:] == pytest.approx([0, (0.5 + 0.75) / 2])
    assert found.notes == ["threshold: 50 % held-out success; savings against K=50, seed by seed"]
    [row] = [row for row in found.tables()[1].rows if row[0] == "K=15"]
    assert (row[:2], row[3]) == (["K=15", "2"], "—")


def test_saturation_finds_the_band_and_convergence_the_gap_between_its_starts():
    arms = {f"K={k}": (fixed(k), [a_run(k=[k], after=0.8, lengths=[5, 9, 15, 16])]) for k in (8, 10, 20, 30)}
    found = table("saturation", arms)
    assert list(found.spreads["success_at_k"]["mean"]) == pytest.approx([0.2, 0.4, 0.8, 0.8])
    assert found.notes == [
        "plateau: K from 20 (the frontier H*) to 30, the largest tried; best at K = 20, within 2.0 points of it"
    ]
    found = table("convergence", {
        "elastic K0=10": ({"wrapper": "elastic", "k0": 10}, [a_run(k=[10, 20, 25, 26], after=0.5)]),
        "elastic K0=50": ({"wrapper": "elastic", "k0": 50}, [a_run(k=[50, 40, 35, 29.5], after=0.5)]),
        "ScalingInter": ({"wrapper": "linear"}, [a_run(k=[10, 20, 30, 40], after=0.5)]),
    })  # fmt: skip
    assert "gap between elastic K0=10 and elastic K0=50 in the last quarter: 3.5 steps" in found.notes


def test_the_k_to_deploy_is_told_by_arm():
    runs = [a_run(k=[9], after=0.5), a_run(1, k=[9], after=0.5)]
    for run, knee in zip(runs, (7, None), strict=True):
        run.result().update(saturation={"knee": knee}, tasks=8, episodes=16)
    notes = table("recurring", {"K=9": (fixed(9), runs)}).notes
    assert notes[-1].endswith("(tasks: 8, episodes: 16): K=9: 7, no success")


def test_learning_compares_with_the_largest_k_seed_by_seed():
    def run(seed, final, *, tokens, half):
        return a_run(seed, k=[20, 20], tokens=[tokens / 2] * 2, held_out={0: half, 1: final}, after=final)

    found = table("learning", {
        "K=15": (fixed(15), [run(s, 0.5, tokens=200, half=0.4) for s in (0, 1)]),
        "K=50": (fixed(50), [run(s, 0.6, tokens=800, half=0.4) for s in (0, 1)]),
        "elastic": ({"wrapper": "elastic"}, [run(s, 0.7 + 0.2 * s, tokens=400, half=0.6) for s in (0, 1, 2)]),
    }, threshold=0.4)  # fmt: skip
    assert list(found.spreads["success_at_equal_tokens"]["mean"]) == pytest.approx([0.5, 0.2, (0.6 + 0.6 + 1.1) / 3])
    assert found.spreads["savings"].loc["elastic"].to_list() == [0.5, 0, 2]
    # differences of .1 and .3 from K=50: .2 and 12.706 * .1414 / sqrt 2 = 1.271 to both sides
    shown = "K=15 -10.0 (-10.0 to -10.0), elastic +20.0 (-107.1 to +147.1)"
    assert found.notes[1].endswith(f"from K=50, seed by seed, with 95 % intervals: {shown}")


def test_seeds_are_paired_within_a_stratum():
    values = pd.concat({"a": pd.Series([0.1, 0.3]), "b": pd.Series([0.0, 0.0, 0.3])})
    # The means' variances are .02 / 2 and .03 / 3; .02^2 / (.01^2 / 1 + .01^2 / 2) = 2.667 degrees of freedom, so t is
    # 3.46, between 4.30 (2) and 3.18 (3); 3.46 sqrt(.02) / 2 = .245
    assert paired_difference(values, 0 * values) == pytest.approx((0.15, 0.15 - 0.2448, 0.15 + 0.2448), abs=1e-4)
    assert paired_difference(values, values) == (0, 0, 0)
    assert paired_difference(values, 0 * values[:3]) is None  # b has one pair


@pytest.mark.parametrize(("held_out", "what"), [({1: 0.4}, "held-out"), ({}, "training")])
def test_the_cheapest_arm_has_a_success_at_equal_tokens_of_the_kind_that_the_note_names(held_out, what):
    run = a_run(k=[20] * 3, held_out=held_out, success=[0.4, 0.4, 0.4], after=0.5)
    found = table("pretrained", {"K=15": (fixed(15), [run])})
    assert found.spreads["success_at_equal_tokens"].loc["K=15", "mean"] == pytest.approx(0.4)
    assert f"threshold: 50 % {what} success" in found.notes[0]
    assert ("no held-out evaluations" in found.notes[-1]) == (not held_out)
