"""An episode as it grows, and what the controller is told."""

from __future__ import annotations

from typing import Any

import pytest

from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn


def test_an_episode_grows_with_its_mask() -> None:
    t = Trajectory("t", 0, horizon=5)
    t.add_prompt([1, 2])
    t.add_sample(Sample([3, 4], [-0.5, -0.25], "stop", 7))
    t.add_prompt([5])
    assert (t.ids, t.action_mask, t.logprobs) == ([1, 2, 3, 4, 5], [0, 0, 1, 1, 0], [0.0, 0.0, -0.5, -0.25, 0.0])
    assert (t.action_tokens, t.versions) == (2, [7])


@pytest.mark.parametrize(
    ("end", "truncated"),
    [("terminated", False), ("horizon", True), ("truncated", True), ("context", True), ("environment-error", False)],
)
def test_the_controller_is_told_why(end: Any, truncated: bool) -> None:
    t = Trajectory("task", 0, horizon=6, success=end == "terminated", end=end)
    t.turns = [Turn("a", "o", cut=False, malformed=False)] * 4
    outcome = t.outcome()
    assert (outcome.length, outcome.horizon, outcome.truncated, outcome.task_id) == (4, 6, truncated, "task")
    assert outcome.success == (end == "terminated")
