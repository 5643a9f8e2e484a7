"""Calls requested ahead: an equal request gets their reply, and they end with their episode."""

import pytest

from harness.agents.protocol import ModelCall
from harness.rollout.ahead import AgentCalls, CallsAhead
from harness.rollout.conversation import UnreadableRequestError
from harness.types.sampler import SampleRequest
from harness.types.trajectory import Trajectory


class Agent:
    def __init__(self, words, k=0):
        self.line = [ModelCall([{"role": "user", "content": word}]) for word in words]
        self.read = []
        program = self
        make = lambda session, _, prompt, seed: SampleRequest(session, prompt, 9, seed)  # noqa: E731
        self.calls = AgentCalls(Trajectory("x", 0, horizon=k), program, self.prompt, make)

    def waiting(self):
        return self.line

    def prompt(self, call):
        self.read.append(call.messages[0]["content"])
        if self.read[-1] == "?":
            raise UnreadableRequestError("no")
        return self.read[-1]

    def next_request(self, more=""):
        call = self.line.pop(0)
        return self.calls.present(7, call, call.messages[0]["content"] + more)


def reply(player, request):
    player.submit(request)
    while not (done := player.step()):
        assert player.pending
    [(replied, said)] = done
    assert replied is request
    return said


@pytest.fixture
def player(fake):
    return fake.Player(lambda request: (request.prompt_ids, request.seed))


def test_a_call_has_the_same_reply_ahead_and_in_its_turn_and_is_requested_once(player):
    said = []
    for most in (0, 2, 9):
        player.requests, agent = [], Agent("abbacb")
        ahead = CallsAhead(player, most)
        said.append([reply(ahead, agent.next_request()) for _ in range(6)])
        assert len(player.requests) == 6
        assert sum(request.session == 7 for request in player.requests) == (1 if most else 6)
    assert said[0] == said[1] == said[2]
    assert len(set(said[0])) == 6, "equal calls draw anew"


def test_a_changed_conversation_and_another_attempt_are_requested_anew(player):
    ahead, agent = CallsAhead(player, 9), Agent("abc")
    reply(ahead, agent.next_request())
    assert reply(ahead, agent.next_request(more="!"))[0] == "b!"
    ahead.submit(agent.next_request())
    assert (player.pending, ahead.pending) == (0, 1), "its reply is there"
    ahead.end_session(7)
    ahead.submit(Agent("b").next_request())
    assert player.running[7].prompt_ids == "b"


def test_only_what_is_within_k_is_read_and_what_cannot_be_read_once(player):
    ahead, agent = CallsAhead(player, 9), Agent("a?bc", k=3)
    ahead.submit(agent.next_request())
    for _ in range(3):
        ahead.step()
    assert agent.read == ["?", "b"]
