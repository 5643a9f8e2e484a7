import math

import pytest

from harness.terminal.watch import Watch


def metrics(success=0.5):
    return {"rollout/success": success, "train/zero_advantage_groups": 0.2, "train/logp_difference_mean": math.nan}


def test_a_sampler_that_computes_another_policy_is_warned_of_once():
    watch, m = Watch(), metrics()
    assert not any(watch.check({**m, "train/logp_difference_mean": x}) for x in (math.nan, 0.02, 0.1))
    assert "3.71 nats" in watch.check({**m, "train/logp_difference_mean": 3.71})
    assert not watch.check({**m, "train/logp_difference_mean": 3.5})


@pytest.mark.parametrize(
    ("binds", "success", "warning"),
    [
        ((1, 1, 1, 1, 0, 0), (0.1, 0.0, 0.0, 0.1, 0.0, 0.1), "the longest successes needed"),
        ((1, 1, 1, 1, 1, 1), (0.0, 0.0, 0.0, 0.0, 0.0, 0.0), "there was no success"),
        ((1, 1, 1, 1, 0, 0), (0.1, 0.1, 0.1, 0.1, 0.3, 0.6), ""),  # it learns nevertheless
        ((1, 1, 0, 0, 0, 0), (0.1, 0.0, 0.0, 0.1, 0.0, 0.1), ""),  # a K that was too small at the start
    ],
)
def test_a_k_that_binds_while_nothing_is_learned_may_be_too_small(binds, success, warning):
    watch = Watch()
    rows = [{**metrics(s), "horizon/binds": b, "horizon/k_mean": 10.0} for b, s in zip(binds, success, strict=True)]
    said = [watch.check(row) for row in rows]
    assert not any(said[:-1])
    assert ("--k0" in said[-1]) == bool(warning)
    assert warning in said[-1]
    assert not watch.check(rows[-1])  # it is said once
