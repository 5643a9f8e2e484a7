"""The task stream: passes over all tasks, as a pure function of the update."""

from __future__ import annotations

import pytest

from eh_gym.errors import ConfigError
from harness.rollout.tasks import TaskStream

TASKS = [f"t{i}" for i in range(10)]


def test_every_pass_meets_every_task_once() -> None:
    stream = TaskStream(TASKS, per_update=3, seed=0)
    met = [task for update in range(20) for task in stream.batch(update)]
    passes = [met[i : i + 10] for i in range(0, 60, 10)]
    assert all(sorted(p) == TASKS for p in passes)
    assert len({tuple(p) for p in passes}) > 1  # each pass has an order of its own


def test_the_order_in_which_updates_are_asked_for_changes_nothing() -> None:
    forward, backward = TaskStream(TASKS, per_update=4, seed=1), TaskStream(TASKS, per_update=4, seed=1)
    assert [forward.batch(u) for u in range(9)] == [backward.batch(u) for u in reversed(range(9))][::-1]


def test_seeds_differ_and_a_large_update_wraps_around() -> None:
    assert TaskStream(TASKS, per_update=10, seed=0).batch(0) != TaskStream(TASKS, per_update=10, seed=1).batch(0)
    assert len(TaskStream(TASKS, per_update=25, seed=0).batch(0)) == 25


def test_spare_tasks_are_first_those_that_the_update_does_not_have() -> None:
    stream = TaskStream(TASKS, per_update=4, seed=0)
    spares = [stream.spare(5, index) for index in range(12)]
    assert set(spares[:6]).isdisjoint(stream.batch(5))
    assert sorted(spares[:10]) == TASKS
    assert spares[10:] == spares[:2]  # more than there are tasks
    assert [stream.spare(6, index) for index in range(6)] != spares[:6]


def test_bad_arguments_say_the_mend() -> None:
    with pytest.raises(ConfigError, match="tasks_per_update must be >= 1, got 0"):
        TaskStream(TASKS, per_update=0, seed=0)
    with pytest.raises(ConfigError, match="holds no task; choose another split"):
        TaskStream([], per_update=1, seed=0)
