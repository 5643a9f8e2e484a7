"""Calls requested ahead: an equal request gets their reply, and they end with their episode."""

from typing import Any

from harness.agents.protocol import ModelCall
from harness.rollout.ahead import AgentCalls, CallsAhead
from harness.rollout.conversation import UnreadableRequestError
from harness.types.sampler import SampleRequest
from harness.types.trajectory import Trajectory


class Player:
    """Replies to all requests in each step, with their prompts and seeds."""

    def __init__(self) -> None:
        self.running: dict[Any, SampleRequest] = {}
        self.sessions: list[Any] = []

    @property
    def pending(self) -> int:
        return len(self.running)

    def submit(self, request: SampleRequest) -> None:
        self.running[request.session] = request
        self.sessions.append(request.session)

    def step(self) -> list[tuple[Any, Any]]:
        running, self.running = self.running, {}
        return [(request, (request.prompt_ids, request.seed)) for request in running.values()]

    def end_session(self, session: Any) -> None:
        self.running.pop(session, None)


class Agent:
    """Makes a call for each word, all at once. "?" can't be read."""

    def __init__(self, words: str, k: int = 0) -> None:
        self.line = [ModelCall([{"role": "user", "content": word}]) for word in words]
        self.read: list[str] = []
        program: Any = self
        make = lambda session, _, prompt, seed: SampleRequest(session, prompt, 9, seed)  # noqa: E731
        self.calls = AgentCalls(Trajectory("x", 0, horizon=k), program, self.prompt, make)

    def waiting(self) -> list[ModelCall]:
        return self.line

    def prompt(self, call: ModelCall) -> str:
        self.read.append(call.messages[0]["content"])
        if self.read[-1] == "?":
            raise UnreadableRequestError("no")
        return self.read[-1]

    def next_request(self, more: str = "") -> Any:
        call = self.line.pop(0)
        return self.calls.present(7, call, call.messages[0]["content"] + more)


def reply(player: CallsAhead, request: Any) -> Any:
    player.submit(request)
    [(replied, said)] = player.step()
    assert replied is request
    return said


def test_a_call_has_the_same_reply_ahead_and_in_its_turn_and_is_requested_once() -> None:
    said = []
    for most in (0, 2, 9):
        player, agent = Player(), Agent("abbacb")
        ahead = CallsAhead(player, most)
        said.append([reply(ahead, agent.next_request()) for _ in range(6)])
        assert len(player.sessions) == 6
        assert player.sessions.count(7) == (1 if most else 6)
    assert said[0] == said[1] == said[2]
    assert len(set(said[0])) == 6, "equal calls draw anew"


def test_a_changed_conversation_and_another_attempt_are_requested_anew() -> None:
    player, agent = Player(), Agent("abc")
    ahead = CallsAhead(player, 9)
    reply(ahead, agent.next_request())
    assert reply(ahead, agent.next_request(more="!"))[0] == "b!"
    ahead.submit(agent.next_request())
    assert (player.pending, ahead.pending) == (0, 1), "its reply is there"
    ahead.end_session(7)
    ahead.submit(Agent("b").next_request())
    assert player.running[7].prompt_ids == "b"


def test_only_what_is_within_k_is_read_and_what_cannot_be_read_once() -> None:
    agent = Agent("a?bc", k=3)
    ahead = CallsAhead(Player(), 9)
    ahead.submit(agent.next_request())
    for _ in range(3):
        ahead.step()
    assert agent.read == ["?", "b"]
