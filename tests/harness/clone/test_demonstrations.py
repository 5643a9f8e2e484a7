import gymnasium as gym
import numpy as np
import pytest

import eh_gym
from eh_gym.errors import WorkerDied, WorkerError
from harness.clone.demonstrations import demonstration


@pytest.fixture
def env():
    return gym.make("EH-Cabinet-v0", split="train")


@pytest.mark.parametrize("where", ["reset", "step", "answer", "expert"])
def test_an_environment_that_fails_is_an_error_that_names_the_task(env, monkeypatch, where):
    def fails(*_, **__):
        if where == "answer":
            return "The environment failed.", 0.0, False, True, {"environment_error": "killed"}
        raise WorkerDied("killed")

    task = env.unwrapped.task_ids[0]
    failing = env.unwrapped if where == "expert" else env
    monkeypatch.setattr(failing, "step" if where == "answer" else where, fails)
    with pytest.raises(WorkerError, match=f"^task {task}: the environment failed: killed$"):
        demonstration(env, task, waste=0.0, max_steps=9, rng=np.random.default_rng(0))


def test_an_episode_ends_with_the_environment_or_at_the_limit(env):
    task = env.unwrapped.task_ids[0]
    whole = demonstration(env, task, waste=0.0, max_steps=99, rng=np.random.default_rng(0))
    assert (whole.end, whole.length) == ("terminated", whole.optimal_steps)
    cut = demonstration(env, task, waste=0.0, max_steps=2, rng=np.random.default_rng(0))
    assert (cut.turns, cut.end) == (whole.turns[:2], "context")
    few = {"max_steps": 9, "max_optimal_steps": whole.length - 1}
    assert demonstration(env, task, waste=0.0, rng=np.random.default_rng(0), **few) is None


class Number(gym.Env[str, str]):
    """Asks for a number of its own generator, three times, and does not say how many steps its expert takes."""

    task_ids = ("a",)
    observation_space = action_space = eh_gym.UnicodeText(99)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.left = str(self.np_random.integers(10_000)), 3
        return f"say {self.number}", {"task_id": "a", "system_prompt": "", "instruction": ""}

    def step(self, action):
        self.left -= action == self.number
        return "go on", 0.0, not self.left, False, {"success": not self.left, "malformed": False}

    def expert(self):
        return self.number

    def random_action(self, rng):
        return "0"


def test_an_environment_that_draws_gets_a_seed():
    played = [demonstration(Number(), "a", waste=0.5, max_steps=9, rng=np.random.default_rng(s)) for s in (1, 1, 2)]
    assert played[0] == played[1]
    assert played[0].prompt != played[2].prompt


def test_where_the_environment_does_not_know_the_expert_s_steps_they_are_counted():
    def play(limit, waste=0.0):
        rng = np.random.default_rng(0)
        return demonstration(Number(), "a", waste=waste, max_steps=99, rng=rng, max_optimal_steps=limit)

    assert play(2) is None
    assert play(3).length == 3
    assert play(3, waste=0.8).length > 3  # wasted steps do not count
