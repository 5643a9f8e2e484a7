"""The warnings of a training run."""

from __future__ import annotations

import math

import pytest

from harness.run.watch import Watch


def metrics(p90: float, long: float, *, success: float = 0.5, equal: float = 0.2) -> dict[str, float]:
    return {
        "rollout/length_success_p90": p90,
        "rollout/success_long": long,
        "rollout/success": success,
        "train/zero_advantage_groups": equal,
        "train/logp_difference_mean": math.nan,
    }


def test_a_sampler_that_computes_another_policy_is_warned_of_once() -> None:
    watch, m = Watch(), metrics(20.0, 0.5)
    assert not any(watch.look({**m, "train/logp_difference_mean": x}) for x in (math.nan, 0.02, 0.1))
    assert "3.71 nats" in watch.look({**m, "train/logp_difference_mean": 3.71})
    assert not watch.look({**m, "train/logp_difference_mean": 3.5})


@pytest.mark.parametrize(
    ("p90", "long", "warned"),
    [
        ((20.0, 15.0), (0.6, 0.3), True),
        ((20.0, 15.0), (0.6, 0.6), False),  # it needs fewer steps and loses no task
        ((20.0, 19.0), (0.6, 0.3), False),
        ((20.0, math.nan), (0.6, 0.3), False),  # no success at all is another warning
        ((20.0, 15.0), (math.nan, math.nan), False),  # no expert is known
    ],
)
def test_shorter_successes_and_fewer_of_the_long_tasks_are_a_collapse(
    p90: tuple[float, float], long: tuple[float, float], warned: bool
) -> None:
    watch = Watch()
    before = [watch.look(metrics(p90[0], long[0])) for _ in range(10)]
    after = [watch.look(metrics(p90[1], long[1])) for _ in range(10)]
    assert not any(before + after[:-1])
    assert ("gives up its long tasks" in after[-1]) == warned
    if warned:
        assert "from 20.0 to 15.0 steps" in after[-1]
        assert "from 0.60 to 0.30" in after[-1]
        assert not any(watch.look(metrics(p90[1] - 0.1 * i, long[1])) for i in range(5))  # it is said once


def test_a_warning_that_lasts_hides_no_other() -> None:
    watch, apart = Watch(), {"train/logp_difference_mean": 3.7}
    before = [watch.look(metrics(20.0, 0.6) | apart) for _ in range(10)]
    after = [watch.look(metrics(15.0, 0.3) | apart) for _ in range(10)]
    assert [bool(warning) for warning in before + after] == [True, *[False] * 18, True]
    assert "gives up its long tasks" in after[-1]


@pytest.mark.parametrize(
    ("binds", "success", "warned"),
    [
        ((1, 1, 1, 1, 0, 0), (0.1, 0.0, 0.0, 0.1, 0.0, 0.1), True),
        ((1, 1, 1, 1, 0, 0), (0.1, 0.1, 0.1, 0.1, 0.3, 0.6), False),  # it learns nevertheless
        ((1, 1, 0, 0, 0, 0), (0.1, 0.0, 0.0, 0.1, 0.0, 0.1), False),  # a K that was too small at the start
    ],
)
def test_a_k_that_binds_while_nothing_is_learned_may_be_too_small(
    binds: tuple[int, ...], success: tuple[float, ...], warned: bool
) -> None:
    watch = Watch()
    rows = [
        {**metrics(9.0, 0.5, success=s + 1e-9), "horizon/binds": b, "horizon/k_mean": 10.0}
        for b, s in zip(binds, success, strict=True)
    ]
    said = [watch.look(row) for row in rows]
    assert not any(said[:-1])
    assert ("--k0" in said[-1]) == warned
    assert not watch.look(rows[-1])  # it is said once
