"""`python -m envs check` says of a right environment that it is right, and of a wrong one what is wrong and how to fix it."""

import re

import gymnasium as gym
import pytest

from envs.__main__ import main
from envs.cabinet.env import CabinetEnv


class Shaped(CabinetEnv):
    """Pays a tenth for each step."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 0.1, *rest


class Strict(CabinetEnv):
    """Raises for what it can't read."""

    def step(self, action):
        if "(" not in action:
            raise ValueError("no call")
        return super().step(action)


# Of each wrong environment, a check that fails and what the line after it must name.
WRONG = {
    Shaped: (
        "malformed actions are answered and never raise",
        r"the reward must be 0 until the end, got 0\.1; put the shaped part into the info",
    ),
    Strict: ("malformed actions are answered and never raise", r"ValueError: no call \(.*test_check\.py, line \d+\)"),
}


@pytest.fixture(autouse=True)
def _registered():
    for wrong in WRONG:
        gym.register(f"{wrong.__name__}-v0", wrong)
    yield
    for wrong in WRONG:
        del gym.registry[f"{wrong.__name__}-v0"]


def test_a_right_environment_is_right_and_each_wrong_one_is_told_what_to_fix(capsys):
    assert main(["check", "EH-Cabinet-v0", "--split", "dev"]) == 0
    said = capsys.readouterr().out
    assert "wrong" not in said
    for wrong, (check, fault) in WRONG.items():
        assert main(["check", f"{wrong.__name__}-v0"]) == 1
        said = capsys.readouterr().out
        assert re.search(rf"^wrong  {check}\n +{fault}", said, re.MULTILINE), said
