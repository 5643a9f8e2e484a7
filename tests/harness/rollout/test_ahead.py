"""Calls requested ahead: an equal request gets their reply, and they end with their episode."""

import dataclasses
from typing import Any

from harness.agents.protocol import ModelCall
from harness.rollout.ahead import AgentCalls, CallsAhead
from harness.rollout.conversation import UnreadableRequestError
from harness.types.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class Request:
    session: Any
    prompt: str
    seed: int


class Player:
    """Replies to all requests in each step."""

    def __init__(self) -> None:
        self.running: dict[Any, Request] = {}
        self.asked: list[Request] = []

    @property
    def pending(self) -> int:
        return len(self.running)

    def submit(self, request: Request) -> None:
        assert request.session == 7 or request.session not in [one.session for one in self.asked]
        self.running[request.session] = request
        self.asked.append(request)

    def step(self) -> list[tuple[Request, Any]]:
        running, self.running = self.running, {}
        return [(request, (request.prompt, request.seed)) for request in running.values()]

    def end_session(self, session: Any) -> None:
        self.running.pop(session, None)


class Agent:
    """Makes calls at once. `read` names those that are read, in order; "?" can't be."""

    def __init__(self, words: str, k: int = 0) -> None:
        self.line = [ModelCall([{"role": "user", "content": word}]) for word in words]
        self.trajectory = Trajectory("x", 0, seed=3, horizon=k)
        self.read: list[str] = []
        self.calls = AgentCalls(self.trajectory, self, self.prompt, lambda session, _, *asked: Request(session, *asked))  # type: ignore[arg-type]

    def waiting(self) -> list[ModelCall]:
        return self.line

    def prompt(self, call: ModelCall) -> str:
        word: str = call.messages[0]["content"]
        self.read.append(word)
        if word == "?":
            raise UnreadableRequestError("no")
        return word

    def next_request(self, more: str = "") -> Any:
        call = self.line.pop(0)
        return self.calls.present(7, call, call.messages[0]["content"] + more)


def replies(player: CallsAhead, request: Any) -> list[Any]:
    player.submit(request)
    while not (done := player.step()):
        assert player.pending
    [(returned, reply)] = done
    assert returned is request
    return reply  # type: ignore[no-any-return]


def test_every_call_has_the_reply_that_it_has_in_its_turn_and_is_asked_once() -> None:
    said = []
    for most in (0, 2, 9):
        player, agent = Player(), Agent("abbacb")
        said.append([replies(ahead, agent.next_request()) for ahead in [CallsAhead(player, most)] for _ in range(6)])
        assert len(player.asked) == 6
        assert sum(request.session == 7 for request in player.asked) == (1 if most else 6)
    assert said[0] == said[1] == said[2]
    assert len(set(said[0])) == 6, "equal calls draw anew"


def test_a_changed_conversation_is_asked_anew_and_its_end_drops_what_is_ahead() -> None:
    player, agent = Player(), Agent("abc")
    ahead = CallsAhead(player, 9)
    replies(ahead, agent.next_request())
    assert replies(ahead, agent.next_request(more="!"))[0] == "b!"
    ahead.submit(agent.next_request())
    assert ahead.pending == 1
    agent = Agent("ab")
    ahead.submit(agent.next_request())
    assert ahead.pending == 2
    ahead.end_session(7)
    assert player.pending == 0


def test_only_what_is_within_k_is_read_and_what_cannot_be_read_once() -> None:
    agent = Agent("a?bc", k=3)
    ahead = CallsAhead(Player(), 9)
    ahead.submit(agent.next_request())
    for _ in range(3):
        ahead.step()
    assert agent.read == ["?", "b"]
