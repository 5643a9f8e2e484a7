"""Success and cost over the horizon, from episodes that were played once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from eh_gym.errors import ConfigError
from harness.evaluate import Evaluation, run
from harness.evaluation.result import EvalResult
from harness.evaluation.saturation import PlayedSteps, saturation, saturation_table, steps_of_line
from harness.policy.policy import Policy


def episode(task: str, horizon: int, length: int, *, success: bool) -> PlayedSteps:
    cut = length == horizon and not success
    return PlayedSteps(task, horizon, length, success, cut, tokens=[10] + [2] * (length - 1))


def test_one_evaluation_has_what_a_sweep_of_fixed_horizons_gives(trained: Policy, tmp_path: Path) -> None:
    trained.save(tmp_path / "model")

    def played(horizon: int, **more: Any) -> EvalResult:
        settings = Evaluation(
            policy=str(tmp_path / "model"), tasks=16, rollouts=2, horizon=horizon, rollout="lockstep", **more
        )
        return run(settings, Console(quiet=True))

    curve = played(24).saturation
    assert curve is not None
    assert curve.k_max == 24
    for k in (3, 7, 12, 24):
        fixed = played(k)
        assert curve.success[k - 1] == pytest.approx(fixed.mean_at_k)
        assert (curve.low[k - 1], curve.high[k - 1]) == pytest.approx(fixed.mean_interval)
        assert curve.tokens[k - 1] == pytest.approx(fixed.tokens / 32)
    assert curve.success[2] < curve.success[11] <= curve.success[23]

    assert played(24, out=tmp_path / "kept").saturation == curve
    assert played(24, out=tmp_path / "kept").saturation == curve  # all from the folder
    assert played(24, budget_hint="[{left}]").saturation is None  # the agent knows K


def test_episodes_that_their_own_k_cut_off_are_completed_from_those_with_a_larger_one() -> None:
    small = [episode("a", 4, 2, success=True), episode("a", 4, 4, success=False)]
    large = [episode("b", 8, 6, success=True), episode("b", 8, 5, success=False)]  # the last one failed by itself
    curve = saturation([*small, *large])
    assert curve is not None
    # 1 of 4 succeeds in step 2. In step 6, 1 of the 2 that have 6 steps succeeds: 1 - 3/4 * 1/2.
    assert curve.success == pytest.approx((0, 1 / 4, 1 / 4, 1 / 4))
    curve = saturation([*small, *large] * 10)
    assert curve is not None
    assert curve.success == pytest.approx((0, 1 / 4, 1 / 4, 1 / 4, 1 / 4, 5 / 8, 5 / 8, 5 / 8))
    assert curve.episodes == (40,) * 4 + (20,) * 4
    # 3 of 4 are left after step 2. Both that have more than 4 steps play step 5, and one plays step 6.
    assert curve.tokens == pytest.approx([10, 12, 13.5, 15, 16.5, 17.25, 17.25, 17.25])
    assert (curve.boundary, curve.knee) == (6.0, 6)


def test_the_curve_of_a_training_run_with_a_moving_k_is_that_of_the_policy() -> None:
    rng = np.random.default_rng(0)

    def one(horizon: int) -> PlayedSteps:
        needed, gives_up = int(rng.geometric(0.1)), int(rng.geometric(0.02))
        length = min(needed, gives_up, horizon)
        return episode(f"{rng.integers(50)}", horizon, length, success=length == needed)

    full = saturation([one(40) for _ in range(6000)])
    moving = saturation([one(int(rng.integers(10, 41))) for _ in range(6000)])
    assert full is not None
    assert moving is not None
    assert moving.k_max >= 39
    np.testing.assert_allclose(moving.success[:39], full.success[:39], atol=0.03)
    np.testing.assert_allclose(moving.tokens[:39], full.tokens[:39], rtol=0.05)
    assert all(low <= share <= high for low, share, high in zip(full.low, full.success, full.high, strict=True))


def test_what_k_cut_off_is_told_apart_from_what_failed_and_each_step_has_its_tokens() -> None:
    first = {"prompt_tokens": 0, "action_tokens": 3, "observation_tokens": 4}
    last = {"prompt_tokens": 0, "action_tokens": 5, "observation_tokens": 0}
    line = {"task_id": "a", "horizon": 2, "success": False, "prompt_tokens": 10, "turns": [first, last]}
    cut, failed = (steps_of_line({**line, "end": end}) for end in ("horizon", "terminated"))
    assert cut == PlayedSteps("a", 2, 2, False, True, [10 + 3, 4 + 5])
    assert failed == PlayedSteps("a", 2, 2, False, False, [13, 9])


def test_no_episode_gives_no_curve_and_no_limit_is_refused() -> None:
    assert saturation([]) is None
    with pytest.raises(ConfigError, match="horizon"):
        saturation([PlayedSteps("a", 0, 3, True, False, [1, 1, 1])])


def test_a_k_has_all_of_its_marks() -> None:
    """The last one hid the others: here the knee is P90 + 10 and the K of the evaluation."""
    curve = saturation([episode("a", 16, 6, success=True), episode("b", 16, 16, success=True)])
    assert curve is not None
    table = saturation_table(dataclasses.replace(curve, boundary=6.0))
    assert list(table.columns[-1].cells)[-1] == "2 points below at most, P90 + 10, this evaluation"
