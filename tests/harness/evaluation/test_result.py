"""mean@k, best@k and their intervals, from episodes."""

from unittest.mock import MagicMock, Mock

import pytest

from eh_gym.errors import UserCodeError
from harness.evaluation.held_out import HeldOutEvaluator
from harness.evaluation.intervals import wilson_interval
from harness.evaluation.result import result_table
from harness.evaluation.result import summarise as result_of
from harness.machine.ranks import Ranks
from harness.records.episode_log import episode_line
from harness.types.trajectory import Trajectory, Turn


def summarise(episodes, **more):
    return result_of([episode_line(t, {}) for t in episodes], **more)


def episode(group, *, success, length=3, end="terminated"):
    t = Trajectory(f"t{group}", group, horizon=9, success=success, reward=float(success), end=end, optimal_steps=3)
    t.turns = [Turn("a", "o", cut=False, malformed=False)] * length
    t.ids, t.action_mask = [1] * length, [1] * length
    return t


def test_mean_and_best_show_their_arithmetic():
    result = summarise(
        [
            episode(0, success=True, length=3),
            episode(0, success=False, length=9, end="horizon"),
            episode(1, success=False),
            episode(1, success=False),
            episode(2, success=True, length=6),
            episode(2, success=True, length=9),
            episode(2, success=False, end="environment-error"),
        ]
    )
    assert (result.tasks, result.rollouts, result.successes) == (3, 2, 3)
    assert result.mean_at_k == result.reward_mean == pytest.approx(3 / 6)
    assert result.best_at_k == pytest.approx(2 / 3)  # tasks 0 and 2
    assert result.length_success_mean == pytest.approx((3 + 6 + 9) / 3)
    assert result.success_lengths == (3, 6, 9)
    assert result.steps_per_optimum == pytest.approx((1 + 2 + 3) / 3)
    assert dict(result_table("", result).rows) == {
        "successes": "3/6",
        "mean@2": "50.0 %  (95 %: 15.0 to 85.0)",
        "pass@2 (any of 2)": "66.7 %  (95 %: 20.8 to 93.9)",
        "pass^2 (all 2)": "33.3 %  (95 %: 6.1 to 79.2)",
        "steps, all / successes / P90": "5.5 / 6.0 / 8.4",
        "steps / the expert's": "2.00",
        "stopped by K or context": "16.7 %",  # 1 of 6
        "lost to environment errors": "1",
    }
    bad, failed = episode(0, success=False), episode(1, success=False)
    bad.reward, failed.unscored = -3.0, True
    assert summarise([bad, failed]).reward_mean == -3.0


def test_an_evaluation_that_lost_every_episode_says_why():
    lost = episode(0, success=False)
    lost.fail("WorkerDied: the disk is gone")
    with pytest.raises(UserCodeError, match="the last: WorkerDied: the disk is gone; fix"):
        summarise([lost])


def test_intervals_are_wilsons():
    # p = 1/2, n = 4, z = 1.96: centre 1/2, half width z sqrt(1/16 + z^2/64) / (1 + z^2/4)
    low, high = wilson_interval(0.5, 4)
    z = 1.959964
    half = z * (1 / 16 + z**2 / 64) ** 0.5 / (1 + z**2 / 4)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half))
    assert wilson_interval(0.5, 0) == (0, 1)


def test_episodes_of_one_task_do_not_count_as_independent():
    alike = summarise([episode(g, success=g % 2 == 0) for g in range(20) for _ in range(8)])
    mixed = summarise([episode(g, success=m % 2 == 0) for g in range(20) for m in range(8)])
    single = summarise([episode(g, success=g % 2 == 0) for g in range(20)])
    width = lambda r: r.mean_interval[1] - r.mean_interval[0]  # noqa: E731
    assert width(alike) == pytest.approx(width(single))
    assert single.mean_interval == pytest.approx(single.best_interval)  # one number has one interval
    assert mixed.mean_interval == pytest.approx(wilson_interval(0.5, 160))  # all tasks have the same share
    nearly = summarise([episode(g, success=m < 4 + (g == 0) - (g == 1)) for g in range(20) for m in range(8)])
    assert width(nearly) == pytest.approx(width(mixed))


def part(group, *, success, **info):
    trajectory = episode(group, success=success)
    trajectory.info = info
    return trajectory


def test_categories_count_alike_whatever_their_size():
    played = [part(g, success=g != 0, category="base") for g in range(4)]
    result = summarise([*played, part(4, success=False, category="long_context")])
    assert [(p.kind, p.name, p.tasks, p.mean_at_k) for p in result.parts] == [
        ("category", "base", 4, 0.75),
        ("category", "long_context", 1, 0.0),
    ]
    assert result.category_mean == pytest.approx(0.375)
    assert result.mean_at_k == pytest.approx(3 / 5)
    assert result.scenarios_at_k is None


def test_a_scenario_counts_when_all_its_tasks_do_and_not_when_one_is_lost():
    """As appworld.evaluator.Metric: the mean over scenarios of the least of their tasks, for each difficulty and in
    all."""
    solved = {("a", 1): [1, 1, 1], ("b", 1): [1, 0, 1], ("c", 3): [1, 1, 1]}
    played = [
        part(10 * s + t, success=bool(success), scenario=scenario, difficulty=difficulty)
        for s, ((scenario, difficulty), tasks) in enumerate(solved.items())
        for t, success in enumerate(tasks)
    ]
    result = summarise(played)
    assert (result.mean_at_k, result.scenarios_at_k) == (pytest.approx(8 / 9), pytest.approx(2 / 3))
    assert [(p.name, p.mean_at_k, p.scenarios_at_k) for p in result.parts] == [
        ("1", pytest.approx(5 / 6), 0.5),
        ("3", 1.0, 1.0),
    ]
    assert summarise(played, whole_split=False).scenarios_at_k is None  # it has tasks that were not asked for
    played[1].end = "environment-error"
    assert summarise(played).scenarios_at_k == pytest.approx(1 / 2)
    played[1].info = {}  # its reset failed, so it may be a task of any scenario
    assert summarise(played).scenarios_at_k is None


def test_scenarios_are_counted_round_by_round():
    played = [part(g, success=s, scenario="a") for g, ss in enumerate([(True, True), (True, False)]) for s in ss]
    assert summarise(played).scenarios_at_k == 0.5


def test_a_benchmark_s_measures_have_its_names():
    played = [part(g, success=g < 3, scenario=f"s{g // 2}", kind="mms") for g in range(4)]
    assert [(what, share[:6]) for what, share in result_table("", summarise(played)).rows[1:5]] == [
        ("tasks (TGC)", "75.0 %"),
        ("scenarios (SGC)", "50.0 %"),
        ("kind mms", "75.0 %"),
        ("kind mms, scenarios", "50.0 %"),
    ]


def test_a_result_is_shown_in_some_lines():
    result = summarise([part(seed, success=True, kind=f"{seed}") for seed in range(200)])
    assert len(repr(result)) < 1000


def test_a_run_s_tasks_are_played_by_sampled_actions_and_once_by_greedy_ones(quick, monkeypatch):
    def play(_, __, ___, asked, how, *, horizon, **____):
        played.append((how.temperature, len(asked), horizon))
        return [episode(0, success=True), lost, lost]

    played = []
    lost, display = episode(1, success=False), MagicMock()
    lost.fail("gone")
    monkeypatch.setattr("harness.evaluation.held_out.play_policy", play)
    monkeypatch.setattr("harness.evaluation.held_out.held_out_tasks", lambda *_: ["a", "b"])
    held, k = HeldOutEvaluator(quick, Mock(), ["a", "b"], Mock(), Mock(), Ranks()), quick.evaluation_horizon
    assert [*held.sampled_and_greedy(display, "before training")] == ["sampled", "greedy"]
    assert display.note.call_count == 2
    assert held.during_training(Mock(), 3) == {"evaluation/mean_at_k": 1.0, "evaluation/reward_mean": 1.0}
    assert played == [(1.0, 2 * quick.evaluation.rollouts, k), (0.0, 2, k), (1.0, 2, k)]
