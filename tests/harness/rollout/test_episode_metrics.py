"""The arithmetic of an update's ``rollout/…`` metrics."""

import pytest
from glossary import check_glossary

from eh_gym import FixedHorizon
from eh_gym.errors import UserCodeError
from harness.rollout.episode_metrics import rollout_metrics
from harness.rollout.faults import Faults
from harness.rollout.outcomes import tell_controller
from harness.types.trajectory import Trajectory, Turn


def test_metrics_show_their_arithmetic():
    def episode(length, *, optimal=3, end="terminated", **info):
        t = Trajectory(
            "t", 0, horizon=4, success=length == 3, reward=length / 2, end=end, optimal_steps=optimal, info=info
        )
        t.ids, t.action_mask, t.versions = [1] * (2 * length), [0, 1] * length, [0, 1]
        t.turns = [
            Turn("a", "o", cut=i == 0, malformed=i < 2, reasoning_tokens=i, unfinished=i == 3) for i in range(length)
        ]
        return t

    failed_twice = episode(0, end="environment-error")
    failed_twice.retries, failed_twice.failed_tokens, failed_twice.versions = 2, 30, [2]
    by_agent = episode(1, end="context", optimal=6, agent="mine")
    by_agent.failure = "lost"
    ended = [episode(3, environment="A"), episode(4, end="horizon", optimal=6, environment="A"), by_agent]
    m = rollout_metrics([*ended, episode(9, end="environment-error"), failed_twice], update=2)
    of_all = {"success": 1 / 3, "reward_mean": (1.5 + 2 + 0.5) / 3, "truncated": 2 / 3, "length_mean": (3 + 4 + 1) / 3}
    of_all |= {"success_ceiling": 1 / 3}  # 3 <= 4, 6 > 4, 6 > 4
    of_all |= {"success_long": 0}  # optimal 3, 6, 6: the third from 6 on are the episodes that failed
    of_all |= {"length_success_mean": 3, "length_success_p90": 3, "steps_per_optimum": 1, "malformed": (2 + 2 + 1) / 8}
    of_all |= {"action_cut": 3 / 8, "unfinished_reasoning": 1 / 8, "reasoning_tokens": 0 + 1 + 2 + 0 + 1 + 2 + 3 + 0}
    of_all |= {"environment_errors": 2, "environment_retries": 2, "context_overflows": 1, "episodes": 3, "steps": 8}
    of_all |= {"policy_lag": (4 * (2 + 1) + 0) / 9, "action_tokens": 8, "prompt_tokens": 8}
    of_all |= {"episodes_of/A": 2, "success_of/A": 1 / 2, "truncated_of/A": 1 / 2, "length_mean_of/A": 7 / 2}
    of_all |= {"agent_failures": 1, "agent_sequences": 1}
    check_glossary(m)
    tokens = {"tokens/update": 16, "tokens/update_of/A": 14, "tokens/failed_attempts": 30}
    assert m == pytest.approx({f"rollout/{name}": value for name, value in of_all.items()} | tokens)


def test_a_run_ends_if_all_episodes_of_two_updates_or_of_the_last_one_are_lost():
    fine, lost, faults = Trajectory("t", 0), Trajectory("t", 0), Faults()
    lost.fail("gone")
    failed = Trajectory("t", 0, info={"agent": "mine"})
    failed.fail_by_agent("it broke")
    assert "1 of 2 episodes were lost" in faults.check([fine, lost], last=True)
    assert "1 of 3 episodes ended by a failure of the agent" in faults.check([fine, failed, fine], last=True)
    assert faults.check([fine, failed, fine], last=True) == ""  # it has been told
    for _ in range(2):
        assert "all 2 episodes" in faults.check([lost, lost], last=False)
        assert "2 of 3 episodes" in faults.check([lost, lost, fine], last=False)
    faults.check([lost], last=False)
    for looked, last in ((faults, False), (Faults(), True)):
        with pytest.raises(UserCodeError, match=r"all 1 .*gone"):
            looked.check([lost], last=last)


@pytest.mark.parametrize(
    ("lengths", "cut", "binds"),
    [
        ([4, 9], 3, 1.0),  # three of five episodes
        ([5], 2, 1.0),
        ([9, 9], 2, 0.0),  # no more than half
        ([3, 4], 3, 0.0),  # the successes need less than half of K: a larger one would help none of them
        ([], 3, 1.0),  # K may be what keeps the successes away
    ],
)
def test_k_binds_if_it_ends_most_episodes_and_the_longest_successes_need_half_of_it(lengths, cut, binds):
    def episode(length, end):
        t = Trajectory("t", 0, horizon=10, success=end == "terminated", end=end)
        t.turns = [Turn("a", "o", cut=False, malformed=False) for _ in range(length)]
        return t

    played = [*(episode(length, "terminated") for length in lengths), *(episode(10, "horizon") for _ in range(cut))]
    played += [episode(1, "environment-error")]
    assert tell_controller(FixedHorizon(10), played)["horizon/binds"] == binds
    assert tell_controller(FixedHorizon(10), [Trajectory("t", 0, success=True)])["horizon/binds"] == 0.0  # without K
