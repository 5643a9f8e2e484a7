import math

import gymnasium as gym
import numpy as np
import pytest

from eh_gym import UnicodeText
from eh_gym.checked import CheckedEnv
from eh_gym.errors import UserCodeError, WorkerDied
from envs.make import checked_environment

INFO = {"task_id": "7", "system_prompt": "rules"}


class Scripted(gym.Env[str, str]):
    observation_space = action_space = UnicodeText(16)

    def __init__(self, start=("first", INFO), answer=("seen", 0.0, False, False, {})):
        self.start, self.answer = start, answer

    def reset(self, *, seed=None, options=None):
        return self._given(self.start)

    def step(self, action):
        return self._given(self.answer)

    def _given(self, answer):
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_an_environment_without_spaces_is_refused_with_a_sentence():
    with pytest.raises(UserCodeError, match=r"^Env has no observation_space; make it an eh_gym\.UnicodeText"):
        CheckedEnv(gym.Env())


def played(**given):
    env = CheckedEnv(Scripted(**given), more="; python -m envs check my:Env-v0 says")
    env.reset(seed=0, options={"task_id": "7"})
    return env.step("go")


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("first", "reset must return \\(observation, info\\), got 'first'"),
        (("first", None), "the info must be a dict, got None"),
        ((3, INFO), "an observation must be a str, got 3"),
        (("first", {**INFO, "task_id": "8"}), "asked for task '7', got '8'"),
        (("first", {"task_id": "7"}), "info\\['system_prompt'\\]"),
    ],
)
def test_what_a_reset_must_return(start, said):
    with pytest.raises(UserCodeError, match=f"^task '7', reset: {said}.*; python -m envs check my:Env-v0 says"):
        played(start=start)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "step must return .*, got None"),
        (("seen", 0.0, False, {}), "step must return .*; return all five"),
        ((4, 0.0, False, False, {}), "an observation must be a str, got 4"),
        (("seen", None, False, False, {}), "the reward must be a number, got None"),
        (("seen", 0.0, None, False, {}), "terminated must be True or False, got None"),
        (("seen", 0.0, False, "no", {}), "truncated must be True or False, got 'no'"),
        (("seen", 0.0, False, False, None), "the info must be a dict, got None"),
        (
            ("seen", math.nan, False, False, {}),
            "the reward must be a finite number, .* got nan; look for a division by zero",
        ),
        (("seen", 1e13, False, False, {}), "the reward must be a finite number, at most 1e\\+12 from 0, got 1"),
        (("seen", 0.0, True, False, {"success": "False"}), "info\\['success'\\] must be True or False"),
        (
            ("seen", 0.0, False, False, {"environment_error": "gone"}),
            "info\\['environment_error'\\] must end the episode",
        ),
        (("seen", 0.0, True, False, {"success": math.nan}), "info\\['success'\\] .* leave it out, so that the reward"),
    ],
)
def test_what_a_step_must_return(answer, said):
    with pytest.raises(UserCodeError, match=f"^task '7', step 1: {said}"):
        played(answer=answer)


def test_an_answer_that_loses_the_episode_keeps_to_no_other_rule():
    answer = ("gone", 0.0, True, False, {"environment_error": "gone", "success": None})
    assert played(answer=answer) == answer


@pytest.mark.parametrize(
    ("rewards", "verdict", "threshold", "success"),
    [
        ([0.1] * 10, {}, 1.0, True),  # which add up to 0.9999999999999999
        ([0.5, 0.4], {}, 0.9, True),
        ([-3, 1.5], {}, -1.5, True),
        ([0.0, 0.2], {"success": True}, 1.0, True),
        ([2.0], {"success": np.False_}, 1.0, False),
    ],
)
def test_without_a_verdict_the_sum_of_the_rewards_decides(rewards, verdict, threshold, success):
    script = Scripted()
    env = CheckedEnv(script, threshold)
    for _ in range(2):  # each episode has its own sum
        env.reset()
        for reward in rewards[:-1]:
            script.answer = ("seen", reward, False, False, {})
            assert env.step("go") == script.answer
        script.answer = ("seen", rewards[-1], True, False, verdict)
        assert env.step("go")[4] == {"success": success, **({} if verdict else {"success_threshold": threshold})}
        assert verdict in ({}, script.answer[4])


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"start": RuntimeError("db is down")},
            ("reset: .*RuntimeError: db is down", "raise eh_gym.errors.WorkerError"),
        ),
        ({"answer": KeyError("anwser")}, ("step 1: .*KeyError: 'anwser'", r"info\['environment_error'\]")),
        ({"answer": Unspeakable()}, ("step 1: .*Unspeakable: .*RuntimeError", "truncated=True")),
    ],
)
def test_what_an_environment_raises_has_its_task_step_line_and_what_to_do(given, said):
    what, advice = said
    with pytest.raises(UserCodeError, match=rf"^task '7', {what}.*test_checked.py, line \d+, in _given\); .*{advice}"):
        played(**given)


def test_an_error_that_loses_the_episode_passes_unchanged():
    with pytest.raises(WorkerDied, match=r"^gone$"):
        played(answer=WorkerDied("gone"))


def test_the_checks_do_not_change_what_an_environment_is():
    env = checked_environment("EH-Cabinet-v0", {"split": "dev"})
    assert env.spec == gym.make("EH-Cabinet-v0", split="dev", disable_env_checker=True).spec
