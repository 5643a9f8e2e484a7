"""The running estimate of episode lengths and the order that follows from it."""

from __future__ import annotations

import json
from typing import Any

from harness.rollout import length_estimates
from harness.rollout.length_estimates import EpisodeLengths
from harness.types.trajectory import Trajectory, Turn


def episode(task_id: str, steps: int, end: Any = "terminated") -> Trajectory:
    return Trajectory(task_id, 0, end=end, turns=[Turn("", "", cut=False, malformed=False)] * steps)


def test_an_estimate_is_the_mean_of_what_it_was_and_the_new_mean() -> None:
    lengths = EpisodeLengths()
    lengths.observe([episode("a", 4), episode("a", 8), episode("b", 1)])
    assert lengths.expected("a") == 6.0
    lengths.observe([episode("a", 10), episode("b", 3)])
    assert (lengths.expected("a"), lengths.expected("b")) == (8.0, 2.0)
    assert lengths.expected("never seen") == 5.0  # the mean of 8 and 2


def test_lost_episodes_say_nothing() -> None:
    lengths = EpisodeLengths()
    lengths.observe([episode("a", 9, "environment-error"), episode("b", 2), episode("b", 30, "environment-error")])
    assert (lengths.expected("a"), lengths.expected("b")) == (2.0, 2.0)


def test_it_goes_on_from_its_state_and_forgets_what_was_seen_longest_ago(monkeypatch: Any) -> None:
    monkeypatch.setattr(length_estimates, "_MOST_TASKS", 2)
    lengths = EpisodeLengths()
    lengths.observe([episode("a", 1)])
    lengths.observe([episode("b", 2)])
    resumed = EpisodeLengths()
    resumed.load_state_dict(json.loads(json.dumps(lengths.state_dict())))
    for one in (lengths, resumed):
        one.observe([episode("a", 5)])
        one.observe([episode("c", 7)])  # "b" goes
        assert one.state_dict()["estimates"] == [("a", 3.0), ("c", 7.0)]
