"""The arithmetic of an update's ``rollout/…`` metrics."""

from typing import Any

import pytest

from eh_gym import FixedHorizon
from harness.rollout.episode_metrics import rollout_metrics
from harness.rollout.outcomes import tell_controller
from harness.types.trajectory import Trajectory, Turn


def test_metrics_show_their_arithmetic() -> None:
    def episode(length: int, *, success: bool, end: Any = "terminated", optimal: int | None = 3) -> Trajectory:
        t = Trajectory("t", 0, horizon=4, success=success, reward=float(success), end=end, optimal_steps=optimal)
        t.ids, t.action_mask = [1] * (2 * length), [0, 1] * length
        t.turns = [Turn("a", "o", cut=i == 0, malformed=i < 2) for i in range(length)]
        return t

    failed_twice = episode(0, success=False, end="environment-error")
    failed_twice.retries, failed_twice.failed_tokens = 2, 30
    m = rollout_metrics(
        [
            episode(3, success=True),
            episode(4, success=False, end="horizon", optimal=6),
            episode(1, success=False),
            episode(9, success=False, end="environment-error"),
            failed_twice,
        ],
        update=0,
    )
    assert m["rollout/success"] == pytest.approx(1 / 3)
    assert m["rollout/success_ceiling"] == pytest.approx(2 / 3)  # 3 <= 4, 6 > 4, 3 <= 4
    assert m["rollout/success_long"] == 0.0  # optimal 3, 6, 3: the third from 6 on is the episode that failed
    assert m["rollout/truncated"] == pytest.approx(1 / 3)
    assert m["rollout/length_mean"] == pytest.approx((3 + 4 + 1) / 3)
    assert m["rollout/length_success_mean"] == 3.0
    assert m["rollout/steps_per_optimum"] == 1.0
    assert m["rollout/malformed"] == pytest.approx((2 + 2 + 1) / 8)
    assert m["rollout/action_cut"] == pytest.approx(3 / 8)
    assert (m["rollout/environment_errors"], m["rollout/environment_retries"]) == (2.0, 2.0)
    assert m["tokens/failed_attempts"] == 30.0
    assert (m["tokens/update"], m["rollout/action_tokens"], m["rollout/prompt_tokens"]) == (16.0, 8.0, 8.0)


@pytest.mark.parametrize(
    ("lengths", "cut", "binds"),
    [
        ([4, 9], 3, 1.0),  # three of five episodes
        ([3, 4], 3, 0.0),  # the successes need less than half of K: a larger one would help none of them
        ([], 3, 1.0),  # K may be what keeps the successes away
    ],
)
def test_k_binds_if_it_ends_most_episodes_and_the_longest_successes_need_half_of_it(
    lengths: list[int], cut: int, binds: float
) -> None:
    def episode(length: int, end: Any) -> Trajectory:
        t = Trajectory("t", 0, horizon=10, success=end == "terminated", end=end)
        t.turns = [Turn("a", "o", cut=False, malformed=False) for _ in range(length)]
        return t

    played = [*(episode(length, "terminated") for length in lengths), *(episode(10, "horizon") for _ in range(cut))]
    played += [episode(1, "environment-error")]
    assert tell_controller(FixedHorizon(10), played)["horizon/binds"] == binds
