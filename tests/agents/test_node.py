"""An agent in another language, as a command."""

import importlib
from pathlib import Path

from harness.agents.env import AgentEnv

HERE = Path(__file__).parent
TASK = {"id": "two", "start": "a", "notes": {"a": "next f", "f": "code 7 3"}}


def test_an_agent_in_javascript_is_played_to_its_success(command, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    expert = importlib.import_module("expert").expert
    env = AgentEnv(command, [TASK], timeout_s=60.0)
    _, info = env.reset(options={"task_id": "two"})
    calls = []
    terminated = False
    while not terminated:
        calls.append(info["call"])
        _, reward, terminated, _, info = env.step(expert(calls[-1]))
    assert (reward, info["failure"], len(calls)) == (1.0, None, 6)
    assert all(call.stream for call in calls)
