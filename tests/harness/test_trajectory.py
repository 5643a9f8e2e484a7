"""Batches of episodes, and what the controller is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.sampling.base import Sample
from harness.trajectory import Trajectory, Turn, collate, microbatches


def test_an_episode_grows_with_its_mask() -> None:
    t = Trajectory("t", 0, horizon=5)
    t.add_prompt([1, 2])
    t.add_sample(Sample([3, 4], [-0.5, -0.25], "stop", 7))
    t.add_prompt([5])
    assert (t.ids, t.action_mask, t.logprobs) == ([1, 2, 3, 4, 5], [0, 0, 1, 1, 0], [0.0, 0.0, -0.5, -0.25, 0.0])
    assert (t.action_tokens, t.versions) == (2, [7])


def test_collate_pads_on_the_right() -> None:
    a, b = Trajectory("a", 0), Trajectory("b", 0)
    a.add_prompt([1])
    a.add_sample(Sample([2, 3], [-1.0, -2.0], "stop", 0))
    b.add_prompt([4])
    batch = collate([a, b], pad_id=9)
    assert batch.ids.tolist() == [[1, 2, 3], [4, 9, 9]]
    assert batch.action_mask.tolist() == [[False, True, True], [False, False, False]]
    assert batch.logprobs.tolist() == [[0.0, -1.0, -2.0], [0.0, 0.0, 0.0]]
    assert (batch.ids.dtype, batch.action_mask.dtype, batch.logprobs.dtype) == (torch.int64, torch.bool, torch.float32)


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 200))
def test_microbatches_hold_every_episode_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = list(microbatches(lengths, budget))
    assert sorted(i for g in groups for i in g) == list(range(len(lengths)))
    for g in groups:
        assert len(g) == 1 or len(g) * max(lengths[i] for i in g) <= budget


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
