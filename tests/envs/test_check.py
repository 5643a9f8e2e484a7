"""`python -m envs check` says of a right environment that it is right, and of a wrong one what is wrong and how to fix it."""

import re

import gymnasium as gym
import pytest

from envs.__main__ import main
from envs.cabinet.env import CabinetEnv


class Deaf(CabinetEnv):
    """Plays the seed's task, whatever task is asked for."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class Shaped(CabinetEnv):
    """Pays a tenth for each step."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 0.1, *rest


class Ruleless(CabinetEnv):
    """Has no system prompt."""

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return observation, {name: value for name, value in info.items() if name != "system_prompt"}


class Numeric(CabinetEnv):
    """Answers with numbers."""

    def reset(self, **kwargs):
        return len(super().reset(**kwargs)[0]), super().reset(**kwargs)[1]

    def step(self, action):
        observation, *rest = super().step(action)
        return len(observation), *rest


class Strict(CabinetEnv):
    """Raises for what it can't read."""

    def step(self, action):
        if "(" not in action:
            raise ValueError("no call")
        return super().step(action)


class Forgetful(CabinetEnv):
    """Gives the same info out again and again."""

    kept = {"malformed": True}  # noqa: RUF012 - the fault

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, self.kept if info == {"malformed": True} else info


# Of each wrong environment, a check that fails and what the line after it must name.
WRONG = {
    Deaf: ("the task id wins over the seed", r"asked for task 'train-000000', got .*options\['task_id'\]"),
    Shaped: (
        "malformed actions are answered and never raise",
        r"the reward must be 0 until the end, got 0\.1; put the shaped part into the info",
    ),
    Ruleless: ("reset says what the task is", r"info\['system_prompt'\] must be a str, got None"),
    Numeric: ("reset says what the task is", r"an observation must be a str, got \d; write it as text"),
    Strict: ("malformed actions are answered and never raise", r"ValueError: no call \(.*test_check\.py, line \d+\)"),
    Forgetful: ("infos are fresh", ".*return a new dict each time"),
}


@pytest.fixture(autouse=True)
def _registered():
    Forgetful.kept = {"malformed": True}
    for wrong in WRONG:
        gym.register(f"{wrong.__name__}-v0", wrong)
    yield
    for wrong in WRONG:
        del gym.registry[f"{wrong.__name__}-v0"]


def test_a_right_environment_is_right_and_each_wrong_one_is_told_what_to_fix(capsys):
    assert main(["check", "EH-Cabinet-v0", "--split", "dev"]) == 0
    said = capsys.readouterr().out
    assert "wrong" not in said
    assert re.search(r"^time .* a reset takes \S+ ms, a step \S+ ms", said, re.MULTILINE)
    for wrong, (check, fault) in WRONG.items():
        assert main(["check", f"{wrong.__name__}-v0"]) == 1
        said = capsys.readouterr().out
        assert re.search(rf"^wrong  {check}\n +{fault}", said, re.MULTILINE), said


def test_an_environment_without_an_expert_is_checked_for_the_rest(capsys, monkeypatch):
    monkeypatch.setattr(Deaf, "expert", property(lambda _: None.gone), raising=False)
    assert main(["check", "Deaf-v0"]) == 1
    said = capsys.readouterr().out
    assert "no expert" in said
    assert "the expert solves its tasks" not in said


def test_an_environment_that_cannot_be_made_is_one_line(capsys):
    assert main(["check", "no_such_module:Nothing-v0"]) == 1
    assert main(["check", "EH-Cabinet-v0", "--env-args", "[]"]) == 1
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["error", "error"]
