"""`python -m envs check` says of a right environment that it is right, and of a wrong one how to fix it."""

import re

from envs.__main__ import main
from envs.cabinet.env import CabinetEnv


class Graded(CabinetEnv):
    def step(self, action):
        observation, reward, *rest, info = super().step(action)
        return observation, 0.1 + reward / 2, *rest, {k: v for k, v in info.items() if k != "success"}


class Strict(CabinetEnv):
    def step(self, action):
        if "(" not in action:
            raise ValueError("no call")
        return super().step(action)


def test_a_right_environment_is_right_and_a_wrong_one_is_told_what_to_fix(capsys):
    assert main(["check", "EH-Cabinet-v0", "--split", "dev"]) == 0
    assert "wrong" not in capsys.readouterr().out
    assert main(["check", f"{__file__}:Strict"]) == 1
    fault = r"task .*, step 1: .* ValueError: no call \(.*test_check\.py, line \d+, in step\)"
    said = capsys.readouterr().out
    assert "       as in: malformed" in said
    assert re.search(rf"^wrong  malformed actions are answered and never raise\n +{fault}", said, re.MULTILINE), said


def test_an_environment_without_a_verdict_is_right_from_the_reward_on_that_is_a_success(capsys):
    assert main(["check", f"{__file__}:Graded", "--success-threshold", "0.7"]) == 0
    assert main(["check", f"{__file__}:Graded", "--success-threshold", "9"]) == 1
    assert "the expert failed at" in capsys.readouterr().out
