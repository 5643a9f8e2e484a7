"""Success and cost over the horizon, from episodes that were played once."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from eh_gym.errors import ConfigError
from harness.evaluation.run import run
from harness.evaluation.saturation import curve_of, saturation, saturation_table
from harness.settings.evaluate import EvaluateConfig
from harness.settings.section import changed


def episode(task, horizon, length, *, success):
    turns = [{"action_tokens": 3 + turn, "prompt_tokens": turn} for turn in range(length)]
    turns[0]["observation_tokens"] = 4
    line = {"task_id": task, "horizon": horizon, "success": success, "end": "terminated"}
    return line | {"prompt_tokens": 10, "turns": turns}


def test_one_evaluation_has_what_a_sweep_of_fixed_horizons_gives(trained, tmp_path):
    trained.save(tmp_path / "model")

    def played(horizon, **more):
        policy = str(tmp_path / "model")
        settings = changed(EvaluateConfig(), policy=policy, tasks=16, rollouts=2, horizon=horizon, **more)
        return run(settings, Console(quiet=True))

    curve = played(24).saturation
    assert curve.k_max == 24
    for k in (3, 7, 12, 24):
        fixed = played(k)
        assert curve.success[k - 1] == pytest.approx(fixed.mean_at_k)
        assert (curve.low[k - 1], curve.high[k - 1]) == pytest.approx(fixed.mean_interval)
        assert curve.tokens[k - 1] == pytest.approx(fixed.tokens / 32)
    assert curve.success[2] < curve.success[11] <= curve.success[23]

    assert played(24, out=tmp_path / "kept").saturation == curve
    assert played(24, out=tmp_path / "kept").saturation == curve  # all from the folder


def test_each_step_has_its_tokens():
    curve = saturation([episode("a", 3, 3, success=False)])
    assert curve.tokens == (10 + 3, 13 + 4 + 4 + 1, 22 + 5 + 2)
    assert saturation([episode("a", 1, 1, success=True)]).success == (1.0,)


def test_no_episode_gives_no_curve_and_episodes_without_one_k_are_refused():
    assert saturation([]) is None
    for horizons in ([0], [3, 4]):
        with pytest.raises(ConfigError, match="one horizon"):
            saturation([episode("a", k, 3, success=True) for k in horizons])


@pytest.mark.parametrize(
    ("tasks", "lengths", "advice"),
    [  # 1.96^2 * .98 / .02 = 188.2 tasks without a loss show that it is at most 2 %
        (
            189,
            [3],
            "K = 3, the smallest surely at most 2 points below K = 9 .K = 3: 0.0 to 2.0 .*--k0 13, the P90 .* 189 suc",
        ),
        (188, [3], "K = 9, as so few tasks can't tell it from K = 3; give 189 or more .K = 3: 0.0 to 2.0 .*--k0 13, "),
        (250, [3] * 249 + [9], "K = 9, as so few tasks can't tell it from K = 3; give 500 or more .K = 3: 0.1 to 2.2 "),
        (19, [3, 9], "K = 9 or more, as success may still rise there .K = 8: 27.3 to 68.3 .*too few succ.*, 19 of 20"),
        (2, [0], "no episode succeeded within K = 9, so no K can be chosen from this "),
    ],
)
def test_the_evaluation_says_which_k_to_take_and_from_what(tasks, lengths, advice):
    steps = [lengths[i % len(lengths)] for i in range(tasks)]
    failed = episode("failed", 7, 7, success=True) | {"end": "environment-error"}
    curve = saturation([failed, *(episode(f"{i}", 9, n or 9, success=n > 0) for i, n in enumerate(steps))])
    assert re.match(f"(to deploy: )?{advice}", curve.advice)
    assert f"tasks: {tasks}, episodes: {tasks})" in curve.advice
    assert any("to deploy" in row[-1] for row in saturation_table(curve).rows) == (lengths != [0])


NEEDED = json.loads((Path(__file__).parent / "needed_steps.json").read_text())


@pytest.mark.parametrize("env", NEEDED)
def test_of_the_ks_that_are_advised_at_most_1_in_20_is_wrong(env):
    """Draws from 128 tasks that were played 8 times. The truth is what a K loses in all of them."""
    needed = np.array([[n or np.inf for n in task] for task in NEEDED[env]])
    random = np.random.default_rng(0)
    for tasks in (8, 16, 32, 64):
        draws = [needed[random.choice(128, tasks, replace=False)] for _ in range(200)]
        advised = [k for draw in draws if (k := curve_of(draw, [0.0] * 50).knee or 50) < 50]
        wrong = sum(np.mean((needed > k) & (needed <= 50)) > 0.02 for k in advised)
        print(f"{env}, {tasks} tasks: {len(advised)} of 200 draws advise a K below 50, {wrong} of them wrongly")
        assert wrong <= 0.05 * len(advised)
    assert curve_of(needed, [0.0] * 50).knee < 50
