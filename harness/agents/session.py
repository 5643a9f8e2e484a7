"""The session of one agent: its calls in line, and their answers.

A retry is a request that equals one whose client has gone without its answer. It takes that one's place in the line, or
gets its answer, which is not sampled or counted again. A request without a client is not taken.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from harness.agents.protocol import OVER, Json, ModelAnswer, ModelCall, Refusal, Sampling

Answer = ModelAnswer | Refusal

_KEPT = 256  # answers that may not have arrived, for late retries
_LOOK_S = 0.5  # between two checks that a waiting client is still there
_MOST_WAITING = 256  # requests of a session


@dataclass(eq=False)
class Waiting:
    """A request in line, or an answered one. `gone` says whether its client has gone without the answer."""

    call: ModelCall
    gone: Callable[[], bool]
    answer: Answer | None = None


def _arrived() -> bool:
    """`Waiting.gone` of an answer that its client has."""
    return False


class Session:
    """The calls of one agent, answered in turn. The arguments are those of `read_call` and `AgentEnv`.

    `items` are what its responses have put out, and `said` is what a hosted model's server has: see `remember`.

    Until it is closed, it is in `sessions`, the open ones by their keys.
    """

    def __init__(
        self,
        sessions: dict[str, Session],
        url: str,
        temperature: float | None = None,
        sampling: Sampling = "run",
        upstream: str = "",
        hosted: bool = False,
    ) -> None:
        self.key = secrets.token_urlsafe(24)
        self.base_url = f"{url}/{self.key}/v1"
        self.temperature, self.sampling, self.upstream, self.hosted = temperature, sampling, upstream, hosted
        self.items: dict[str, Json] = {}
        self.said: dict[str, dict[int, Json]] = {}
        self.connections = Connections()
        self._sessions = sessions
        self._changed = threading.Condition()
        self._line: list[Waiting] = []
        self._taken: Waiting | None = None
        self._answered: list[Waiting] = []
        self._end: Refusal | None = None
        self._last: ModelAnswer | None = None
        sessions[self.key] = self

    def next_call(self, timeout_s: float) -> ModelCall | None:
        """Waits for the agent's next request. Returns the one that is taken already, or else the first in line; None
        after `timeout_s` seconds, or after the session's end.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._taken is None:
                if there := self._there():
                    self._taken = there[0]
                    self._line.remove(there[0])
                elif self._end is not None or not self._changed.wait(max(0.0, until - time.monotonic())):
                    return None
            return self._taken.call

    def waiting(self) -> list[ModelCall]:
        with self._changed:
            return [waiting.call for waiting in self._there()]

    def answer(self, call: ModelCall, answer: ModelAnswer) -> None:
        """Answers the request that `next_call` returned. Does nothing after the session's end."""
        with self._changed:
            if self._taken is not None and self._taken.call is call:
                self._keep(self._taken, answer)
                self._taken = None
                self._changed.notify_all()
            else:
                assert self._end is not None, "next_call() did not return this call, or it is answered"

    def end(self, answer: Refusal, last: ModelAnswer | None = None) -> None:
        """Answers waiting and later requests with `answer`, the first of them with `last`. Works once."""
        with self._changed:
            if self._end is None:
                self._end, self._last = answer, last
                for waiting in (*([self._taken] if self._taken else []), *self._there()):
                    self._end_one(waiting)
                self._line.clear()
                self._taken = None
                self._changed.notify_all()

    def close(self) -> None:
        self.end(Refusal("the session is closed", status=OVER, code="session_closed"))
        self._sessions.pop(self.key, None)
        self.connections.close()

    def request(self, call: ModelCall, gone: Callable[[], bool]) -> Waiting:
        with self._changed:
            for earlier in (*self._answered, *([self._taken] if self._taken else []), *self._line):
                if earlier.call.body_hash == call.body_hash and earlier.gone():
                    earlier.gone = gone
                    self._changed.notify_all()
                    return earlier
            waiting = Waiting(call, gone)
            if self._end is not None:
                self._end_one(waiting)
            else:
                if len(self._line) >= _MOST_WAITING:
                    self._line = self._there()
                if len(self._line) >= _MOST_WAITING:
                    raise Refusal(
                        f"{len(self._line)} requests of this session wait already", status=429, code="too_many_requests"
                    )
                self._line.append(waiting)
                self._changed.notify_all()
            return waiting

    def wait(self, waiting: Waiting, gone: Callable[[], bool], unread: Callable[[], bool]) -> Answer | None:
        """The answer, which the client may leave `unread`; None if it has gone."""
        with self._changed:
            while not gone():
                if waiting.answer is not None:
                    waiting.gone = unread
                    return waiting.answer
                self._changed.wait(_LOOK_S)
            return None

    def settle(self, waiting: Waiting, unread: Callable[[], bool]) -> None:
        """The client of an answer goes on, or leaves: whether it has left the answer `unread` is now certain."""
        with self._changed:
            if waiting.gone == unread:  # else a retry has taken it
                waiting.gone = (lambda: True) if unread() else _arrived

    def _end_one(self, waiting: Waiting) -> None:
        assert self._end is not None
        self._keep(waiting, self._last or self._end)
        self._last = None

    def _keep(self, waiting: Waiting, answer: Answer) -> None:
        waiting.answer = answer
        unread = [one for one in self._answered if one.gone is not _arrived]
        self._answered = [*unread[1 - _KEPT :], waiting]

    def _there(self) -> list[Waiting]:
        return [waiting for waiting in self._line if not waiting.gone()]


class Connections:
    """The connections of an agent, or of clients that have named none yet. There are only so many."""

    def __init__(self) -> None:
        self._idle: dict[socket.socket, bool] = {}  # whether each waits for its next request
        self._lock = threading.Lock()
        self._closed = False

    def begin(self, connection: socket.socket, most: int, *, idle: bool = False) -> bool:
        """A request begins, or an idle connection. If there are `most`, the oldest idle one is closed; False if none is
        idle.
        """
        with self._lock:
            if connection not in self._idle and len(self._idle) >= most:
                oldest = next((other for other, idle in self._idle.items() if idle), None)
                if oldest is None:
                    return False
                _shut(oldest)
                del self._idle[oldest]
            self._idle[connection] = idle
            return True

    def pause(self, connection: socket.socket) -> bool:
        """A connection waits for its next request. False if it has lost its place."""
        with self._lock:
            if connection in self._idle:
                self._idle[connection] = True
            return connection in self._idle and not self._closed

    def leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._idle.pop(connection, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection, idle in self._idle.items():
                if idle:
                    _shut(connection)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the client has closed it
        connection.shutdown(socket.SHUT_RD)  # the other direction would look like a client that has gone
