"""Clients of other people at the endpoint: each plays to its verdict, and ends at once when its calls are used up."""

import json
import os
import sys
from pathlib import Path

import pytest

from harness.agents.gateway import Gateway
from harness.agents.program import find_agent
from harness.agents.protocol import ModelAnswer, budget_used_up

HERE = Path(__file__).parent
SOON_S = 100.0
PYTHON = ("instructor", "dspy")
JAVASCRIPT = ("vercel", "vercel_chat")

pytestmark = pytest.mark.skipif("EH_AGENT" not in os.environ, reason="tox run -m agents has the clients")


@pytest.fixture(params=[*PYTHON, *JAVASCRIPT])
def client(request):
    return request.param


@pytest.fixture
def agent(client, request):
    if client in PYTHON:
        return f"{sys.executable} {HERE / 'clients.py'} {client}"
    return f"node {request.getfixturevalue('node_folder') / 'clients.mjs'} {client}"


@pytest.fixture
def session():
    with Gateway() as gateway:
        yield gateway.open()


def said(client, code, call):
    """What a model would say to this client: that it looks, or that it submits the code."""
    if client == "instructor":
        return ModelAnswer(json.dumps({"name": "submit" if code else "look", "code": code}))
    if client == "dspy":
        fields = {"next_thought": "Hm.", "next_tool_name": "finish" if code else "look", "next_tool_args": "{}"}
        if "[[ ## reasoning ## ]]" in str(call.messages[0]):  # its last call
            fields = {"reasoning": "I saw it.", "code": code}
        return ModelAnswer(
            "\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in [*fields.items(), ("completed", "")])
        )
    name, arguments = ("submit", {"code": code}) if code else ("look", {})
    called = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return ModelAnswer("", [{"id": f"call{len(call.messages)}", **called}], finish_reason="tool_calls")


def serve(session, client, *codes):
    for code in codes:
        call = session.next_call(SOON_S)
        assert call is not None
        session.answer(call, said(client, code, call))


def test_a_client_plays_to_its_verdict(client, agent, session):
    running = find_agent(agent).start({}, session.base_url, lambda: session.end(budget_used_up(0)))
    serve(session, client, "", "", "73", *["73"] * (client == "dspy"))
    assert session.next_call(SOON_S) is None, "it calls once more"
    running.stop(SOON_S)
    assert running.ended is not None
    assert running.ended.success, running.ended


def test_a_client_ends_with_its_first_call_after_the_kth(client, agent, session):
    running = find_agent(agent).start({}, session.base_url, lambda: None)
    serve(session, client, "", "")
    session.end(budget_used_up(2))
    running.stop(SOON_S)
    assert running.ended is not None
    assert "budget of 2" in running.ended.failure + running.ended.trace
