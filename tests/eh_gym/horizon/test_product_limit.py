"""The product-limit estimate undoes the truncation of successes at their own K."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eh_gym.horizon import ElasticHorizon, EpisodeOutcome
from eh_gym.horizon.product_limit import product_limit


def slow(pairs):
    """Lynden-Bell's product, factor by factor, in exact fractions."""
    lengths = sorted({length for length, _ in pairs})
    shares = []
    for x in lengths:
        share = Fraction(1)
        for y in lengths:
            if y > x:
                at_risk = sum(length <= y <= k for length, k in pairs)
                share *= 1 - Fraction(sum(length == y for length, _ in pairs), at_risk)
        shares.append(share)
    return lengths, shares


PAIRS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1])), min_size=1)


@given(PAIRS)
def test_it_equals_the_slow_product(pairs):
    x, share = product_limit(*zip(*pairs, strict=True))
    lengths, shares = slow(pairs)
    assert x.tolist() == lengths
    assert share == pytest.approx([float(s) for s in shares], abs=1e-12)


@given(st.lists(st.integers(1, 30), min_size=1), st.integers(30, 50))
def test_with_one_k_for_all_it_is_the_share_of_lengths(lengths, k):
    x, share = product_limit(lengths, [k] * len(lengths))
    assert share == pytest.approx([np.mean(np.array(lengths) <= n) for n in x])


def test_it_finds_the_whole_law_where_few_episodes_could_show_it():
    rng = np.random.default_rng(0)
    needed = rng.integers(1, 41, 200_000)
    horizons = np.where(rng.random(len(needed)) < 0.1, 40, 12)
    seen = needed <= horizons
    x, share = product_limit(needed[seen], horizons[seen])
    assert np.abs(share - x / 40).max() < 0.01
    assert np.mean(needed[seen] <= 12) > 0.75  # where 0.3 is true


def test_the_controller_s_boundary_sees_what_probes_alone_can_show():
    # Of ten probes 4 take 40 steps; of ninety others, stopped at 10, the 54 short ones are seen.
    outcomes = [(6, 50)] * 6 + [(40, 50)] * 4 + [(6, 10)] * 54
    paper = ElasticHorizon(k0=10)
    aware = ElasticHorizon(k0=10, estimator="product-limit")
    mean = ElasticHorizon(k0=10, estimator="product-limit", statistic="mean")
    for controller in (paper, aware, mean):
        for length, horizon in outcomes:
            controller.record(EpisodeOutcome(length, horizon, True))
    assert paper.update()["horizon/boundary"] == 6
    assert aware.update()["horizon/boundary"] == 40
    assert mean.update()["horizon/boundary"] == pytest.approx(0.6 * 6 + 0.4 * 40)


@pytest.mark.parametrize(("statistic", "boundary"), [("p50", 5), ("p75", 8), ("p90", 9), ("p95", 10), ("max", 10)])
def test_without_truncation_the_percentile_is_the_length_with_the_share_at_or_below_it(statistic, boundary):
    controller = ElasticHorizon(estimator="product-limit", statistic=statistic, min_successes=1)
    for length in range(1, 11):
        controller.record(EpisodeOutcome(length, 15, True))
    assert controller.update()["horizon/boundary"] == boundary


@pytest.mark.parametrize("n", [10, 50, 100, 180])
def test_a_share_that_is_met_exactly_is_met(n):
    controller = ElasticHorizon(k0=5, estimator="product-limit", min_successes=1, buffer_size=n, k_max=n)
    for length in range(1, n + 1):
        controller.record(EpisodeOutcome(length, n, True))
    assert controller.update()["horizon/boundary"] == n * 9 // 10
