"""Agents of other people's frameworks at the endpoint: `tox run -m agents` has a virtualenv for each of them."""

import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import pytest

import eh_gym  # noqa: F401 - registers the cabinet
from harness.agents.env import AgentEnv
from harness.agents.gateway import Gateway
from harness.agents.program import find_agent
from harness.agents.protocol import ModelAnswer, budget_used_up

HERE = Path(__file__).parent
SOON_S = 60.0
REWRITES_ITS_HISTORY = {"with_smolagents"}


@pytest.fixture
def name():
    """The agent that tox names; without tox the one whose package all tests have."""
    return os.environ.get("EH_AGENT", "with_openai")


@pytest.fixture
def play(name, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module(name).play


@pytest.fixture
def expert(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("expert").expert


@pytest.fixture(scope="module")
def task():
    """A cabinet with a chain of three notes, so that every function is called."""
    env = gym.make("EH-Cabinet-v0")
    for task_id in env.unwrapped.task_ids:
        if env.reset(options={"task_id": task_id})[1]["optimal_steps"] == 9:
            return {"id": task_id}
    raise AssertionError("no such task")


@pytest.fixture
def session():
    with Gateway() as gateway:
        yield gateway.open()


def test_an_episode_is_played_to_its_success(name, play, expert, task):
    env = AgentEnv(play, [task], timeout_s=SOON_S)
    _, info = env.reset(options={"task_id": task["id"]})
    known = []
    terminated, steps = False, 0
    while not terminated:
        call = info["call"]
        grows = call.messages[: len(known)] == known
        assert grows or name in REWRITES_ITS_HISTORY
        answer = expert(call)
        known = [*call.messages, answer.message]
        _, reward, terminated, _, info = env.step(answer)
        steps += 1
    assert (reward, info["failure"]) == (1.0, None)
    assert steps == 9


@pytest.mark.parametrize("at_k", ["error", "stop"])
def test_the_end_of_the_budget_ends_the_agent(name, play, expert, task, session, at_k):
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(_run, play, task, session.base_url)
        for _ in range(4):
            call = session.next_call(SOON_S)
            assert call is not None
            session.answer(call, expert(call))
        assert session.next_call(SOON_S) is not None
        session.end(budget_used_up(4), ModelAnswer("The budget is used up.") if at_k == "stop" else None)
        end = ended.result(SOON_S)
    assert not end.success
    assert at_k == "stop" or "budget of 4" in end.failure


def test_two_calls_in_one_answer_are_both_made(play, task, session):
    calls = [
        {"id": f"call{number}", "type": "function", "function": {"name": name, "arguments": {"argument": argument}}}
        for number, (name, argument) in enumerate([("close", ""), ("submit", "00")])
    ]
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(_run, play, task, session.base_url)
        call = session.next_call(SOON_S)
        assert call is not None
        session.answer(call, ModelAnswer("First I tidy up.", calls, finish_reason="tool_calls"))
        while not ended.done() and (call := session.next_call(1.0)) is not None:
            texts = str(call.messages)
            assert "error closed" in texts
            assert "wrong" in texts
            session.end(budget_used_up(1))
        assert not ended.result(SOON_S).success


def _run(play, task, base_url):
    """How an agent ends."""
    running = find_agent(play).start(task, base_url, lambda: None)
    running.stop(SOON_S)
    assert running.ended is not None, "the agent hangs"
    return running.ended
