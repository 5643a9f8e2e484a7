import numpy as np
import pytest

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, TaskHorizon


def meet(controller, task_id, lengths, k=50):
    """One update in which the task's episodes had these lengths; 0 is a failure that K cut off."""
    for length in lengths:
        controller.record(EpisodeOutcome(length or k, k, bool(length), not length, task_id))
    controller.update()
    return controller.horizon_for({"task_id": task_id}, None)


def test_a_task_is_free_until_a_quarter_of_its_last_episodes_succeed_and_again_when_fewer_do():
    controller = TaskHorizon(delta=5, window=8)
    assert meet(controller, "a", [0, 0, 0, 8]) == 13  # one of four: P90 of (8,) is 8, and 5 more
    assert meet(controller, "a", [0, 0, 0, 0]) == 50  # one of eight
    assert meet(controller, "a", [4, 15, 0, 0]) == 18  # the 8 is forgotten; P90 of (4, 15) is 13.9, and P91 14.01
    assert controller.horizon_for({"task_id": "b"}, None) == controller.horizon == 25


def test_a_share_of_exactly_the_threshold_bounds():
    assert meet(TaskHorizon(threshold=0.28, window=25, delta=5), "a", [8] * 7 + [0] * 18) == 13


def test_few_episodes_bound_nothing():
    controller = TaskHorizon(delta=5, min_episodes=4)
    assert meet(controller, "a", [3, 3, 3]) == 50
    assert meet(controller, "a", [3]) == 8


def test_the_target_is_clipped_and_smoothed():
    assert meet(TaskHorizon(delta=5, k_max=20, k0=20, min_episodes=1), "a", [18], 20) == 20
    assert meet(TaskHorizon(delta=5, k_min=15, min_episodes=1), "a", [3]) == 15
    controller = TaskHorizon(delta=5, alpha=0.5, min_episodes=1, window=1)
    assert [meet(controller, "a", [5]) for _ in range(3)] == [30, 20, 15]  # half of the way from 50 to 10 each time


def test_every_third_meeting_is_free():
    controller = TaskHorizon(delta=5, free_every=3, min_episodes=1)
    assert [meet(controller, "a", [5]) for _ in range(6)] == [10, 50, 10, 10, 50, 10]  # K of meetings 2 to 7


def test_a_meeting_is_an_update_in_which_the_task_was_played():
    controller = TaskHorizon(delta=5, free_every=2, min_episodes=1)
    meet(controller, "a", [5])
    for _ in range(3):
        meet(controller, "b", [5])
    assert controller.horizon_for({"task_id": "a"}, None) == 50  # its second meeting is still to come


def test_tasks_that_never_come_again_have_the_elastic_horizon():
    rng = np.random.default_rng(0)
    task, elastic = TaskHorizon(k0=15), ElasticHorizon(k0=15)
    for number in range(300):
        k = task.horizon_for({"task_id": f"task-{number}"}, None)
        assert k == elastic.horizon
        length = min(k, int(rng.integers(1, 60)))
        outcome = EpisodeOutcome(length, k, length < k, length == k, f"task-{number}")
        task.record(outcome)
        elastic.record(outcome)
        task.update()
        elastic.update()
    assert task.horizon_for({}, None) == elastic.horizon > 15


def test_the_tasks_met_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr("eh_gym.horizon.task._MOST_TASKS", 2)
    controller = TaskHorizon(delta=5, min_episodes=1)
    for name in ("a", "b", "a", "c"):
        meet(controller, name, [5])
    assert [controller.horizon_for({"task_id": name}, None) for name in "abc"] == [10, 25, 10]


def test_a_setting_out_of_range_is_named():
    wrong = {"k0": 51, "k_min": "5", "delta": -1, "alpha": 0, "threshold": 1.5, "min_episodes": 17, "free_every": -1}
    for name, value in {**wrong, "window": 0}.items():
        with pytest.raises(ConfigError, match=name):
            TaskHorizon(**{name: value})


@pytest.mark.parametrize("task", [[51, 1, 1, [3]], [4, 1, 1, [3]], ["9", 1, 1, [3]], [9, 1, 1, ["3"]], [9, 1, 1]])
def test_a_state_that_no_controller_has_is_refused(task):
    controller = TaskHorizon()
    state = controller.state_dict()
    state["tasks"] = {"a": task}
    with pytest.raises(StateError, match="tasks must have K, meetings and lengths"):
        controller.load_state_dict(state)
