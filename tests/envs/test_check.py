"""`python -m envs check` says of a right environment that it is right, and of a wrong one what is wrong and how to fix it."""

import re

import gymnasium as gym
import pytest

from envs.__main__ import main
from envs.cabinet.env import CabinetEnv


class Graded(CabinetEnv):
    """Pays a tenth for each step, half for the right code, and gives no verdict."""

    def step(self, action):
        observation, reward, *rest, info = super().step(action)
        return observation, 0.1 + reward / 2, *rest, {k: v for k, v in info.items() if k != "success"}


class Strict(CabinetEnv):
    """Raises for what it can't read."""

    def step(self, action):
        if "(" not in action:
            raise ValueError("no call")
        return super().step(action)


# Of each wrong environment, a check that fails and what the line after it must name.
WRONG = {
    Strict: (
        "malformed actions are answered and never raise",
        r"task .*, step 1: .* ValueError: no call \(.*test_check\.py, line \d+, in step\)",
    ),
}


@pytest.fixture(autouse=True)
def _registered():
    for wrong in (*WRONG, Graded):
        gym.register(f"{wrong.__name__}-v0", wrong)
    yield
    for wrong in (*WRONG, Graded):
        del gym.registry[f"{wrong.__name__}-v0"]


def test_a_right_environment_is_right_and_each_wrong_one_is_told_what_to_fix(capsys):
    assert main(["check", "EH-Cabinet-v0", "--split", "dev"]) == 0
    said = capsys.readouterr().out
    assert "wrong" not in said
    for wrong, (check, fault) in WRONG.items():
        assert main(["check", f"{wrong.__name__}-v0"]) == 1
        said = capsys.readouterr().out
        assert re.search(rf"^wrong  {check}\n +{fault}", said, re.MULTILINE), said


def test_an_environment_without_a_verdict_is_right_from_the_reward_on_that_is_a_success(capsys):
    assert main(["check", "Graded-v0", "--success-threshold", "0.7"]) == 0
    assert main(["check", "Graded-v0", "--success-threshold", "9"]) == 1
    assert "the expert failed at" in capsys.readouterr().out
