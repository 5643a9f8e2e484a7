"""Calls that an agent makes at once. They are requested at once, and each stays a step of its own.

A request is the same in its turn as ahead of it, and so is its reply. Only the conversations with agents, and
`CallsAhead` in front of the player, know of requests ahead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from harness.agents.protocol import AgentProgram, ModelCall
from harness.rollout.conversation import NoRoom, UnreadableRequestError
from harness.types.sampler import LimitedCaches, Player
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory

_SOON_S = 0.001  # until an agent with a reply has the next one, or makes another call


class _Session(NamedTuple):
    """The session of a request ahead, which has only this one."""

    episode: Hashable
    number: int


class AgentRequest(NamedTuple):
    """The request for an agent's present call, and those behind it. The session is an episode's number."""

    session: Any
    request: Any
    calls: AgentCalls


@dataclasses.dataclass(eq=False)
class AgentCalls:
    """The requests for an agent's calls in one attempt at an episode.

    Calls have no order. So a request's seed comes from its text, and from how often it is made.

    `read` returns what is read before the reply to a call. It raises NoRoom or UnreadableRequestError. `make` returns
    the request of a session for a call, with what is read and a seed.
    """

    trajectory: Trajectory
    program: AgentProgram
    read: Callable[[ModelCall], Sequence[Any]]
    make: Callable[[Hashable, ModelCall, Any, int], Any]

    def __post_init__(self) -> None:
        self._counts: Counter[str] = Counter()  # how often the turn of a text has come
        self._counts_ahead: Counter[str] = Counter()
        self._known: list[ModelCall] = []

    def present(self, session: Hashable, call: ModelCall, prompt: Sequence[Any]) -> AgentRequest:
        return AgentRequest(session, self._request(session, call, prompt, self._counts), self)

    def waiting(self, session: Hashable) -> Iterator[Any]:
        """The requests for the calls that wait behind it within K, each once."""
        waiting, k = self.program.waiting(), self.trajectory.horizon
        for call in waiting[: k - self.trajectory.length - 1] if k else waiting:
            if not any(call is one for one in self._known):
                self._known.append(call)
                with suppress(NoRoom, UnreadableRequestError):  # it is left to its turn
                    yield self._request(session, call, self.read(call), self._counts_ahead)

    def _request(self, session: Hashable, call: ModelCall, prompt: Sequence[Any], counts: Counter[str]) -> Any:
        text = hashlib.sha256(str(prompt).encode()).hexdigest()
        counts[text] = 1 + max(counts[text], self._counts[text])
        return self.make(session, call, prompt, derive_seed(self.trajectory.seed, "call", text, counts[text]))


class CallsAhead:
    """A `Player` that hands on requests to another one. While an agent waits for a reply, it requests its other calls.

    Their replies are kept for equal requests. So one is lost if another reply changes the conversation meanwhile.
    """

    def __init__(self, player: Player, most: int) -> None:
        self._player, self._most = player, most
        self._numbers = itertools.count()
        self._sessions: dict[Hashable, list[_Session]] = defaultdict(list)  # of requests ahead, by their episode's
        # By the session in which each is sent:
        self._present: dict[Hashable, AgentRequest] = {}  # those whose replies agents wait for
        self._ahead: dict[Hashable, Any] = {}  # the other ones, as they will be in their turn
        self._replies: dict[Hashable, Any] = {}  # their replies
        self._done: list[tuple[Any, Any]] = []  # replies that came before their turn did
        self._gave = False  # whether the last step returned some of them

    @property
    def pending(self) -> int:
        return self._player.pending + len(self._done)

    def cache_of(self, session: Hashable) -> tuple[Hashable, int]:
        """As `LimitedCaches` has it, of any player."""
        return self._player.cache_of(session) if isinstance(self._player, LimitedCaches) else (None, 0)

    def submit(self, request: Any) -> None:
        if not isinstance(request, AgentRequest):
            self._player.submit(request)
            return
        session = next((name for name, ahead in self._ahead.items() if ahead == request.request), request.session)
        self._ahead.pop(session, None)
        if session in self._replies:
            self._done.append((request, self._replies.pop(session)))
            return
        self._present[session] = request
        if session == request.session:
            self._player.submit(request.request)

    def step(self) -> list[tuple[Any, Any]]:
        asked = [*self._present.values(), *(request for request, _ in self._done)]
        for request in sorted(asked, key=lambda request: request.session):  # the oldest agent's calls come first
            for ahead in itertools.islice(request.calls.waiting(request.session), self._most - len(self._ahead)):
                session = _Session(request.session, next(self._numbers))
                self._sessions[request.session].append(session)
                self._ahead[session] = ahead
                self._player.submit(dataclasses.replace(ahead, session=session))
        if self._done:
            given, self._done, self._gave = self._done, [], True
            return given
        if self._gave:  # their agents' next calls should join the player's next step
            self._gave = False
            time.sleep(_SOON_S)
            return []
        done = []
        for sent, reply in self._player.step():
            if isinstance(sent.session, _Session):
                self._player.end_session(sent.session)
            if sent.session in self._ahead:
                self._replies[sent.session] = reply
            else:
                done.append((self._present.pop(sent.session, sent), reply))
        return done

    def end_session(self, session: Hashable) -> None:
        for name in (session, *self._sessions.pop(session, ())):
            self._player.end_session(name)
            for known in (self._present, self._ahead, self._replies):
                known.pop(name, None)
