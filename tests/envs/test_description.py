"""A benchmark is one folder and one line of registration: every command reads the rest from the environment's class."""

import gymnasium as gym
import pytest

from eh_gym.errors import ConfigError
from eh_gym.registration import ENTRY_POINTS, register_envs
from envs.__main__ import main
from envs.description import description_of
from harness import evaluate_policy
from harness.settings.evaluate import EvaluateConfig, default_split, official
from harness.settings.section import changed
from harness.training.command import recipe_config

NAME = "EH-MadeUp-v0"
FOLDER = """
from envs.description import Backend
from envs.cabinet.env import CabinetEnv
from envs.cabinet.tasks import task_ids
from envs.description import Description


class MadeUpEnv(CabinetEnv):
    description = Description(
        ("train", "dev"),
        task_ids,
        Backend("made-up", "2.0", {"made-up": "2.0"}),
        recipe="smollm2",
        model_split="dev",
        script_split="train",
        official={"split": "dev", "env_args": {"longest": 4}, "horizon": 9},
        official_splits=("test",),
        part_arguments=("tasks",),
        scripts=("lazy",),
    )

    def script(self, name):
        return {"lazy": "list()"}[name]
"""


@pytest.fixture(autouse=True)
def made_up(tmp_path, monkeypatch):
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "env.py").write_text(FOLDER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(ENTRY_POINTS, NAME, "made_up.env:MadeUpEnv")
    register_envs()
    yield
    del gym.registry[NAME]


def test_the_commands_know_it(capsys):
    assert main(["list"]) == 0
    assert capsys.readouterr().out.endswith(
        f"{NAME}\n    train 1,000,000, dev 10,000\n    --official: split dev, env_args {{'longest': 4}}, horizon 9\n"
        "    --policy lazy\n    --recipe smollm2\n    not installed; run: python -m envs install made-up\n"
    )
    assert main(["check", NAME, "--split", "dev"]) == 0  # the conformance suite
    with pytest.raises(ConfigError, match="--recipe smollm2"):
        recipe_config(["--env", f"EH-Cabinet-v0,{NAME}:2"])
    assert (default_split(NAME, script=False), default_split(f"eh_gym:{NAME}", script=True)) == ("dev", "train")
    config = changed(EvaluateConfig(), env=NAME, **official(NAME))
    assert changed(config, split="test").departures(whole_split=True) == ()
    other = changed(config, split="train", horizon=8, env_args={"longest": 4, "tasks": 2})
    assert other.departures(whole_split=True) == ("--horizon", "--split", "--env-args")
    lazy = evaluate_policy("lazy", NAME, tasks=2, horizon=3, show=False)
    assert (lazy.rollouts, lazy.mean_at_k, lazy.length_mean) == (1, 0.0, 3.0)
    with pytest.raises(ConfigError, match=r"needs .*longest.* 4.* in --env-args"):
        changed(config, env_args={})


def test_an_environment_that_is_not_registered_has_no_description():
    assert [description_of(name) for name in ("CartPole-v1", f"{NAME},EH-BFCL-v0")] == [None, None]
    assert default_split("CartPole-v1", script=True) == "all"
