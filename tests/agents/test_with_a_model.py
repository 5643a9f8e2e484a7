"""A tiny model that calls the cabinet's functions plays in the agent of `tox run -m agents`, a command."""

import importlib
import json
import os
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import pytest

import eh_gym  # noqa: F401 - registers the cabinet
from harness import evaluate_policy, train
from harness.settings.grpo import from_recipe
from harness.settings.section import changed

HERE = Path(__file__).parent
AGENT = os.environ.get("EH_AGENT", "")
IN_JAVASCRIPT = {"start": "a", "notes": {"a": "next f", "f": "code 7 3"}}

pytestmark = pytest.mark.skipif(not AGENT, reason="tox run -m agents says which agent")


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE.parents[1] / "examples")
    settings = replace(from_recipe("quickstart").warm_start, max_optimal_steps=9)
    importlib.import_module("tool_agent").clone(tmp_path / "model", 0, settings)
    return tmp_path / "model"


@pytest.fixture
def tasks(tmp_path):
    """Cabinets with at most two notes."""
    env = gym.make("EH-Cabinet-v0", split="test", longest=2)
    every = [{"id": task_id} for task_id in env.unwrapped.task_ids[:4]]
    if AGENT == "node":
        every = [{"id": str(number), **IN_JAVASCRIPT} for number in range(4)]
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps({**task, "split": "test"}) + "\n" for task in every))
    return file


def test_a_model_plays_in_the_agent(model, tasks, tmp_path, request):
    command = f"{os.environ['EH_AGENT_PYTHON']} {HERE / AGENT}.py"
    if AGENT == "node":
        command = request.getfixturevalue("command")
    out = tmp_path / "evaluation"
    settings = {"horizon": 12, "rollouts": 4, "slots": 4, "max_action_tokens": 6, "show": False}
    result = evaluate_policy(str(model), agent=command, tasks=tasks, out=out, **settings)
    [episodes] = (out / "episodes").glob("*.jsonl")
    played = [json.loads(line) for line in episodes.read_text().splitlines()]
    assert len(played) == 16
    assert all(episode["error"] is None and episode["turns"] for episode in played)
    # smolagents writes the calls of the conversation in words of its own, which this model has never seen.
    assert result.mean_at_k > 0 or AGENT == "with_smolagents"


@pytest.mark.skipif(AGENT != "with_mcp", reason="one of them is enough")
def test_a_model_is_trained_in_the_agent(model, tasks, tmp_path):
    config = changed(
        from_recipe("quickstart"),
        agent=f"{os.environ['EH_AGENT_PYTHON']} {HERE / AGENT}.py",
        **{"tasks": str(tasks), "split": "test", "model": str(model), "updates": 2, "tasks_per_update": 2},
        **{"group_size": 4, "max_action_tokens": 6, "k0": 12, "eval_tasks": 0, "warm_start.episodes": 0},
        out=tmp_path / "run",
    )
    history = train(config, show=False).history
    assert [row["rollout/episodes"] for row in history] == [8.0, 8.0]
    assert all(row["rollout/agent_failures"] == row["rollout/environment_errors"] == 0 for row in history)
