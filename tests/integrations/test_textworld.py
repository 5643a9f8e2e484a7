from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from eh_gym.testing import ExpertEnvContract
from envs.make import make_environment

pytest.importorskip("textworld", reason="TextWorld is not installed; run: tox run -e integration-textworld")
from harness.grpo import main
from harness.records.metrics import read_metrics

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "textworld.py"
CONTINUED = """
import pickle, sys
from envs.make import registered
registered(sys.argv[1])
env = pickle.loads(sys.stdin.buffer.read())
print(env.step(env.unwrapped.expert())[0])
print(env.reset(options={"task_id": "7"})[0])
"""


def make():
    return make_environment(f"{FILE}:TextWorldEnv", {"split": "test"})


class TestTextWorld(ExpertEnvContract):
    def make(self):
        return make()


@pytest.mark.parametrize("hashes", ["1", "2"])
def test_a_game_is_the_same_in_a_process_with_other_hashes(hashes):
    env = make()
    env.reset(seed=0)
    env.step(env.unwrapped.expert())
    command = [sys.executable, "-c", CONTINUED, f"{FILE}:TextWorldEnv"]
    environ = os.environ | {"PYTHONHASHSEED": hashes}
    told = subprocess.run(command, input=pickle.dumps(env), env=environ, cwd=ROOT, capture_output=True, check=True)
    expected = [env.step(env.unwrapped.expert())[0], env.reset(options={"task_id": "7"})[0]]
    assert told.stdout.decode().strip().splitlines() == "\n".join(expected).splitlines()


def test_a_tiny_model_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(
        sys.modules[type(make().unwrapped).__module__], "TASKS", {"train": range(20), "test": range(20, 24)}
    )
    words = ["--wrapper", "elastic", "--recipe", "examples/textworld.toml", "--updates", "1", "--tasks-per-update", "2"]
    words += ["--group-size", "2", "--eval-tasks", "2", "--warm-start.max-batches", "5", "--out", str(tmp_path / "run")]
    main(words)
    [row] = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert row["rollout/episodes"] == 4
    assert row["rollout/environment_errors"] == 0
