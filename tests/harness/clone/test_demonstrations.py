"""Expert episodes: an environment that fails on the way changes nothing about them."""

import gymnasium as gym
import numpy as np
import pytest

import eh_gym
from eh_gym.errors import WorkerError
from harness.clone.demonstrations import Expert


class Failing(gym.Wrapper[str, str, str, str]):
    """Fails at every `every`-th call, as an environment whose worker was killed does."""

    def __init__(self, env, every):
        super().__init__(env)
        self._every, self._calls = every, 0

    def _fails(self):
        self._calls += 1
        return self._calls % self._every == 0

    def reset(self, **arguments):
        if self._fails():
            raise WorkerError("killed")
        return self.env.reset(**arguments)

    def step(self, action):
        if self._fails():
            return "The environment failed.", 0.0, False, True, {"environment_error": "killed"}
        return self.env.step(action)


@pytest.fixture
def env():
    return gym.make("EH-Cabinet-v0", split="train")


def test_episodes_are_the_same_where_the_environment_fails(env):
    tasks = env.unwrapped.task_ids[:20]
    failing = Failing(env, every=37)
    for waste in (0.0, 0.6):
        rngs = [np.random.default_rng(3), np.random.default_rng(3)]
        for task in tasks:
            failed, whole = (
                Expert(one).play(task, waste=waste, max_steps=30, rng=rng)
                for one, rng in zip((failing, env), rngs, strict=True)
            )
            assert (failed.prompt, failed.turns, failed.end) == (whole.prompt, whole.turns, whole.end)


def test_an_environment_that_always_fails_is_an_error(env):
    task = env.unwrapped.task_ids[0]
    with pytest.raises(WorkerError, match=f"{task}.*3 times.*killed"):
        Expert(Failing(env, every=1)).play(task, waste=0.0, max_steps=9, rng=np.random.default_rng(0))


def test_an_episode_ends_with_the_environment_or_at_the_limit(env):
    task = env.unwrapped.task_ids[0]
    whole = Expert(env).play(task, waste=0.0, max_steps=99, rng=np.random.default_rng(0))
    assert (whole.end, whole.length) == ("terminated", whole.optimal_steps)
    cut = Expert(env).play(task, waste=0.0, max_steps=2, rng=np.random.default_rng(0))
    assert (cut.turns, cut.end) == (whole.turns[:2], "context")
    short = whole.length - 1
    assert Expert(env).play(task, waste=0.0, max_steps=9, rng=np.random.default_rng(0), max_optimal_steps=short) is None


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
    played = [Expert(Number()).play("a", waste=0.5, max_steps=9, rng=np.random.default_rng(s)) for s in (1, 1, 2)]
    assert played[0] == played[1]
    assert played[0].prompt != played[2].prompt


def test_where_the_environment_does_not_know_the_expert_s_steps_they_are_counted():
    def play(limit, waste=0.0):
        rng = np.random.default_rng(0)
        return Expert(Number()).play("a", waste=waste, max_steps=99, rng=rng, max_optimal_steps=limit)

    assert play(2) is None
    assert play(3).length == 3
    assert play(3, waste=0.8).length > 3  # wasted steps do not count
