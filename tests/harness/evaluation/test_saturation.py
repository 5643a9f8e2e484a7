"""Success and cost over the horizon, from episodes that were played once."""

import dataclasses

import pytest
from rich.console import Console

from eh_gym.errors import ConfigError
from harness.evaluation.run import run
from harness.evaluation.saturation import saturation, saturation_table
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


def test_a_k_has_all_of_its_marks():
    curve = saturation([episode("a", 16, 6, success=True), episode("b", 16, 16, success=True)])
    table = saturation_table(dataclasses.replace(curve, boundary=6.0))
    assert table.rows[-1][-1] == "to deploy, to train (P90 + 10), this evaluation"
    assert curve.advice.startswith("to deploy: K = 16 or more, since success still rises there; to train: --k0 25, the")


@pytest.mark.parametrize(
    ("success", "advice"),
    [
        (True, "to deploy: K = 3, the smallest at most 2 points below K = 9; to train: --k0 13, the P90"),
        (False, "no episode succeeded within K = 9"),
    ],
)
def test_the_evaluation_says_which_k_to_take_and_why(success, advice):
    failed = episode("failed", 7, 7, success=True) | {"end": "environment-error"}
    curve = saturation([failed, *(episode(f"{i}", 9, 3, success=success and i < 1) for i in range(60))])  # 1.7 %
    assert advice in dataclasses.asdict(curve)["advice"]
    assert [row[-1] for row in saturation_table(curve).rows].count("to deploy") == success
