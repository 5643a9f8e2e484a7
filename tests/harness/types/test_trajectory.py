import json

import numpy as np
import pytest

from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn


def test_an_episode_grows_with_its_mask():
    t = Trajectory("t", 0, horizon=5)
    t.add_prompt([1, 2])
    t.add_sample(Sample([3, 4], [-0.5, -0.25], "stop", 7))
    t.add_prompt([5])
    assert (t.ids, t.action_mask, t.logprobs) == ([1, 2, 3, 4, 5], [0, 0, 1, 1, 0], [0.0, 0.0, -0.5, -0.25, 0.0])
    assert (t.action_tokens, t.versions) == (2, [7])


def answered(reward=0.0, terminated=False, truncated=False, **info):
    t = Trajectory("task", 0, turns=[Turn("a")])
    t.begin("first", {"task_id": "task", "system_prompt": "rules", "horizon": 5, "category": "base"})
    end = t.add_answer(("seen", reward, terminated, truncated, info))
    assert end == (t.end if terminated or truncated or t.error else None)
    return t


def test_the_first_message_and_an_answer_are_recorded():
    t = answered(malformed=True, success_threshold=0.5)
    assert (t.system_prompt, t.prompt, t.horizon) == ("rules", "first", 5)
    assert t.info == {"task_id": "task", "horizon": 5, "category": "base"}
    assert t.turns == [Turn("a", "seen", False, True, 0, 0, "", 0, False, 0, latency_s=0.5)]
    assert (t.reward, t.success, t.threshold) == (0.0, False, 0.5)


def test_numbers_of_numpy_are_numbers():
    t = Trajectory("task", 0, turns=[Turn("a")])
    t.begin("first", {"task_id": "task", "system_prompt": "rules", "optimal_steps": np.int64(4)})
    assert json.dumps([t.optimal_steps, answered(reward=np.float32(0.5)).reward]) == "[4, 0.5]"
    for one in (np.True_, np.int64(1), np.float32(1)):
        assert answered(reward=1.0, terminated=True, success=one).success is True


@pytest.mark.parametrize(
    ("answer", "end", "success"),
    [
        ({"reward": 1.0, "terminated": True, "success": True}, "terminated", True),
        ({"terminated": True, "success": False}, "terminated", False),
        # It ended on step K.
        ({"reward": 1.0, "terminated": True, "truncated": True, "success": True}, "terminated", True),
        ({"truncated": True, "TimeLimit.truncated": True, "success": True}, "horizon", False),
        ({"truncated": True, "success": True}, "truncated", False),  # the environment's own limit, not K
        ({"truncated": True, "environment_error": "WorkerDied: gone"}, "environment-error", False),
        ({"terminated": True, "environment_error": "gone", "success": True}, "environment-error", False),
    ],
)
def test_the_end_of_an_episode_is_recorded_with_its_reason(answer, end, success):
    t = answered(**answer)
    assert (t.end, t.success, t.error is not None) == (end, success, end == "environment-error")
    assert t.outcome().truncated == (end in ("horizon", "truncated"))
