import os
import pickle
import re

import pytest

from eh_gym.errors import ConfigError
from envs.__main__ import main as envs
from envs.actors import in_actors
from envs.make import absolute, has_splits, make_environment, registered
from harness.evaluate import main as evaluate
from harness.grpo import main as grpo
from harness.settings.environment import Environment
from harness.settings.grpo import GRPOConfig
from harness.training.command import read_command

CODE = """
from dataclasses import dataclass
import gymnasium as gym
from eh_gym.spaces import UnicodeText
from beside import TASKS

@dataclass
class Place:
    x: int = 0

class Walk(gym.Env):
    observation_space = action_space = UnicodeText(100)
    def __init__(self, steps=3):
        self.task_ids, self.steps = TASKS, steps
    def reset(self, *, seed=None, options=None):
        self.place = Place()
        return "walk", {"task_id": (options or {}).get("task_id", "a"), "system_prompt": "s"}
    def step(self, action):
        self.place.x += action == "on"
        done = self.place.x == self.steps
        return "", float(done), done, False, {"success": done}
    def expert(self):
        return "on"

class Splits(Walk):
    def __init__(self, split="train", steps=3):
        super().__init__(steps)

class Fails(Walk):
    def __init__(self):
        int(self)

def walk(steps=3): return Walk(steps)

class Plain: pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a file of environments, in which the command runs."""
    (tmp_path / "sub").mkdir()
    for where in (tmp_path, tmp_path / "sub"):
        (where / "my_walk.py").write_text(CODE)
        (where / "beside.py").write_text('TASKS = ["a", "b"]')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_module_before_the_id_is_imported_also_for_actors():
    assert registered("eh_gym:EH-Cabinet-v0").id == "EH-Cabinet-v0"
    assert in_actors("eh_gym:EH-Cabinet-v0", None).id == "EH-Cabinet-v0"  # no actor is asked


@pytest.mark.parametrize("env_id", ["Nope-v0", "no_such_module:EH-Cabinet-v0", "EH-Cabinet-v9"])
def test_an_unknown_id_is_named(env_id):
    with pytest.raises(ConfigError, match=f"gymnasium knows no {env_id} .*MODULE:ID") as refused:
        registered(env_id)
    assert "Hopper" not in str(refused.value)


@pytest.mark.parametrize("name", ["my_walk.py:Walk", "sub/my_walk.py:Splits", "my_walk.py:walk", "beside_class:Walk"])
def test_a_class_needs_no_id_and_is_found_by_its_file_in_another_process(name, folder, monkeypatch):
    (folder / "beside_class.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(folder))
    spec = pickle.loads(pickle.dumps(registered(absolute(name) if ".py" in name else name)))
    env = make_environment(spec, {"split": "test", "steps": 2})
    assert env.reset(options={"task_id": "b"})[1]["task_id"] == "b"
    assert [env.step("on")[2] for _ in range(2)] == [False, True]
    assert has_splits(name) == name.endswith("Splits")


def test_a_file_may_have_the_name_of_the_package_that_it_imports(folder):
    (folder / "wave.py").write_text(f"import wave\nassert wave.Wave_read\n{CODE}")
    env = make_environment("wave.py:Walk", {})
    assert type(pickle.loads(pickle.dumps(env.unwrapped))) is type(env.unwrapped)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_wal.py:Walk", "there is no file .*my_wal.py; did you mean .*my_walk.py"),
        ("my_walk.py:Wlak", "my_walk.py has no Wlak; did you mean Walk"),
        ("my_walk.py:Plain", "my_walk.py:Plain is no gymnasium.Env; there are Walk, Splits, Fails"),
        ("beside.py:TASKS", "beside.py:TASKS is no gymnasium.Env"),
        ("wrong.py:Walk", r"wrong.py can't be imported: ModuleNotFoundError: .*wrong.py, line 2"),
        ("syntax.py:Walk", "syntax.py can't be imported: SyntaxError"),
    ],
)
def test_a_class_that_is_not_there_is_named(name, message, folder):
    (folder / "wrong.py").write_text("import sys\nimport no_such_module")
    (folder / "syntax.py").write_text("def f(:")
    with pytest.raises(ConfigError, match=message):
        Environment(env=name)


def test_code_that_fails_when_an_environment_is_made_is_named_and_leaves_no_run(folder, capsys):
    assert envs(["check", "my_walk.py:Fails"]) == 1
    for main in (evaluate, grpo):
        with pytest.raises(SystemExit, match="1"):
            main(["--env", "my_walk.py:Fails"])
    said = r"^error: .*Fails can't be made: .*TypeError: int.*my_walk.py, line \d+, in __init__\)$"
    assert len(re.findall(said, "".join(capsys.readouterr()), re.MULTILINE)) == 3
    assert not [*folder.glob("runs/*")]


def test_a_file_is_an_environment_of_every_command(folder, tmp_path_factory, capsys):
    envs(["check", "my_walk.py:Walk"])
    assert "ok     has no step limit of its own" in capsys.readouterr().out
    evaluate(
        ["--env", "my_walk.py:Walk,EH-Cabinet-v0", "--env-args", '{"my_walk.py:Walk": {"steps": 4}}', "--tasks", "2"]
    )
    assert "2/2" in capsys.readouterr().out

    kept = read_command(["--env", "sub/my_walk.py:Walk"]).config.to_json()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    config = GRPOConfig.from_json(kept)  # as at a resume
    assert config.environment.env == f"{folder}/sub/my_walk.py:Walk"
    assert config.environment.name == "Walk"
    assert (config.environment.split, config.evaluation.split, config.held_out) == ("all", "all", False)
    with pytest.raises(ConfigError, match="takes no split"):
        Environment(env=config.environment.env, split="dev")
