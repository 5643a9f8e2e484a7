"""What the checks see in the metrics of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness.diagnostics.checks import judged, largest_difference
from harness.diagnostics.lab import Lab


def rows(**changes: Any) -> list[dict[str, Any]]:
    row = {
        "train/logp_difference_mean": 1e-7,
        "rollout/environment_errors": 0.0,
        "rollout/policy_lag": 0.0,
        "train/skipped_steps": 0.0,
        "time/update_s": 1.0,
    }
    return [dict.fromkeys(changes, 0.0) | row, row | changes]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        ({"train/logp_difference_mean": 0.3}, ["trainer - sampler, nats"]),  # a hand-over that lost the weights
        ({"train/logp_difference_mean": None}, ["trainer - sampler, nats"]),
        ({"rollout/policy_lag": 1.0}, ["updates behind"]),
        ({"rollout/cache_preemptions": 3.0}, ["preemptions"]),
    ],
)
def test_a_run_is_judged_by_its_metrics(lab: Lab, changes: dict[str, Any], broken: list[str]) -> None:
    assert [measurement.what for measurement in judged(rows(**changes), lab) if not measurement.kept] == broken


def test_two_runs_differ_by_their_largest_relative_difference_without_the_clock_s() -> None:
    assert largest_difference(rows(), rows(**{"time/update_s": 9.0})) == 0
    more = [row | {"time/evaluation_s": 9.0} for row in rows()]
    assert largest_difference(rows(), more) == largest_difference(more, rows()) == 0
    assert largest_difference(rows(), rows(**{"rollout/policy_lag": 1.0})) == 1
    assert largest_difference(rows(), rows(**{"train/logp_difference_mean": None})) == math.inf
    assert largest_difference(rows(), rows()[:1]) == math.inf
