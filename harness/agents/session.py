"""The session of one agent: its calls in line, their answers, and its connections.

A retry gets the earlier answer, which is not sampled or counted again. A request is a retry if its content equals that
of an earlier one, and either the header ``x-stainless-retry-count`` of OpenAI's clients says so, or the earlier client
hung up before its answer. If a client hangs up before its request is taken, the request leaves the line.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from harness.agents.protocol import OVER, ModelAnswer, ModelCall, Refusal

Answer = ModelAnswer | Refusal

_KEPT = 16  # answers, for late retries
_LOOK_S = 0.5  # between two checks that a waiting client is still there
_MOST_WAITING = 256  # requests of a session
_MOST_CONNECTIONS = 320  # of a session


class Server(Protocol):
    """What a session needs of its `Gateway`."""

    url: str
    sessions: dict[str, Session]
    descriptors: int


class Waiting:
    """A request in line, or an answered one."""

    def __init__(self, call: ModelCall, hung_up: Callable[[], bool]) -> None:
        self.call, self.hung_up = call, hung_up
        self.answer: Answer | None = None


class Session:
    """The calls of one agent, answered in turn. `Gateway.open` makes it.

    Attributes:
        key: The secret in its URL.
        base_url: The base URL for the agent's client. Any API key will do.
    """

    def __init__(self, gateway: Server, temperature: float | None, strict: bool) -> None:
        self.key = secrets.token_urlsafe(24)
        self.base_url = f"{gateway.url}/{self.key}/v1"
        self.temperature, self.strict = temperature, strict
        self._gateway = gateway
        self._changed = threading.Condition()
        self._line: deque[Waiting] = deque()
        self._taken: Waiting | None = None
        self._answered: deque[Waiting] = deque(maxlen=_KEPT)
        self._end: Refusal | None = None
        self._last: ModelAnswer | None = None
        self._connections: dict[socket.socket, bool] = {}  # whether each is idle, between two requests
        self._closed = False

    def next_call(self, timeout_s: float) -> ModelCall | None:
        """Waits for the agent's next request.

        Returns:
            The request that was taken and isn't answered yet, or else the first in line. None after `timeout_s`
            seconds, or after the session's end.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._taken is None:
                while self._line and self._line[0].hung_up():
                    self._line.popleft()
                if self._line:
                    self._taken = self._line.popleft()
                elif self._end is not None or not self._changed.wait(max(0.0, until - time.monotonic())):
                    return None
            return self._taken.call

    def waiting(self) -> list[ModelCall]:
        """The requests in line, after the present one."""
        with self._changed:
            return [waiting.call for waiting in self._line]

    def answer(self, call: ModelCall, answer: ModelAnswer) -> None:
        """Answers the request that `next_call` returned. Does nothing after the session's end."""
        with self._changed:
            if self._taken is not None and self._taken.call is call:
                self._taken.answer = answer
                self._answered.append(self._taken)
                self._taken = None
                self._changed.notify_all()
            else:
                assert self._end is not None, "next_call() did not return this call, or it is answered"

    def end(self, answer: Refusal, last: ModelAnswer | None = None) -> None:
        """Answers waiting and later requests with `answer`, the first of them with `last`. Works once."""
        with self._changed:
            if self._end is None:
                self._end, self._last = answer, last
                for waiting in (*([self._taken] if self._taken else []), *self._line):
                    self._end_one(waiting)
                self._line.clear()
                self._taken = None
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the session, closes its connections, and forgets its key."""
        self.end(Refusal("the session is closed", status=OVER, code="session_closed"))
        self._gateway.sessions.pop(self.key, None)
        with self._changed:
            self._closed = True
            for connection, idle in self._connections.items():
                if idle:
                    shut(connection)

    def request(self, call: ModelCall, again: bool, hung_up: Callable[[], bool]) -> Waiting:
        """Puts a request in line, or finds the one that it retries."""
        with self._changed:
            known = (*([self._taken] if self._taken else []), *self._line, *reversed(self._answered))
            for earlier in known:
                if earlier.call.body_hash == call.body_hash and (again or earlier.hung_up()):
                    earlier.hung_up = hung_up
                    return earlier
            waiting = Waiting(call, hung_up)
            if self._end is not None:
                self._end_one(waiting)
            else:
                if len(self._line) >= _MOST_WAITING:
                    raise Refusal(
                        f"{len(self._line)} requests of this session wait already", status=429, code="too_many_requests"
                    )
                self._line.append(waiting)
                self._changed.notify_all()
            return waiting

    def wait(self, waiting: Waiting, hung_up: Callable[[], bool]) -> Answer | None:
        """The answer to a request; None if its client hung up."""
        with self._changed:
            while not hung_up():
                if waiting.answer is not None:
                    return waiting.answer
                self._changed.wait(_LOOK_S)
            if waiting in self._line and waiting.hung_up is hung_up:
                self._line.remove(waiting)
            return None

    def begin(self, connection: socket.socket) -> None:
        """A request begins on a connection. If there are too many, an idle one is closed."""
        with self._changed:
            share = self._gateway.descriptors // 8 // max(1, len(self._gateway.sessions))
            if connection not in self._connections and len(self._connections) >= max(1, min(share, _MOST_CONNECTIONS)):
                idle = next((other for other, idle in self._connections.items() if idle), None)
                if idle is None:
                    raise Refusal(
                        f"{len(self._connections)} requests of this session are open",
                        status=429,
                        code="too_many_requests",
                    )
                shut(idle)
                del self._connections[idle]
            self._connections[connection] = False

    def pause(self, connection: socket.socket) -> bool:
        """A connection waits for its next request. False if the session is closed."""
        with self._changed:
            self._connections[connection] = True
            return not self._closed

    def leave(self, connection: socket.socket) -> None:
        """A connection ends, or goes on in another session."""
        with self._changed:
            self._connections.pop(connection, None)

    def _end_one(self, waiting: Waiting) -> None:
        waiting.answer = self._last or self._end
        self._answered.append(waiting)
        self._last = None


def shut(connection: socket.socket) -> None:
    """Ends a connection, whose thread then closes it."""
    with suppress(OSError):  # the client has closed it
        connection.shutdown(socket.SHUT_RDWR)
