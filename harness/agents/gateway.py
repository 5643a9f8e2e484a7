"""The endpoint that agents talk to: one HTTP server per process, one session per agent.

A request waits until the holder of the session answers it. Each request is a thread that waits, so the standard library's server
is enough.

**Retries.** A request is a retry if an earlier request of its session has the same content, and either the header
``x-stainless-retry-count`` of OpenAI's clients says so, or the client of the earlier one hung up before its answer. A retry
gets the earlier answer, which is not sampled or counted again. Without these signs, the same request again is another call. If
a client hangs up before its request is taken, the request leaves the line.

**Connections.** Each is a descriptor and a thread of the trainer. So the descriptors are raised to the most that the system
allows, and the sessions share an eighth of them. Another eighth is for connections that have named no session yet.
"""

from __future__ import annotations

import json
import re
import resource
import secrets
import select
import socket
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from harness.agents.protocol import OVER, Api, ModelAnswer, ModelCall, Refusal, model_list, read_call
from harness.agents.writing import write_answer

__all__ = ["Gateway", "Session"]

Answer = ModelAnswer | Refusal

_ROUTE = re.compile(r"/([\w-]+)/v1/(models(?:/.+)?|chat/completions|responses)/?")
_APIS: dict[str, Api] = {"chat/completions": "chat", "responses": "responses"}
_KEPT = 16  # The number of answers that a session keeps for late retries.
_LOOK_S = 0.5  # How often a waiting request checks that its client is still there.
_SILENCE_S = 60.0  # A silent connection is closed after this time.
_MOST_WAITING = 256  # requests of a session
_MOST_CONNECTIONS = 320  # of a session: those that wait, and some that are idle
_MOST_STRANGERS = 1024  # connections that have named no session yet
_MOST_BYTES = 8 * 2**20  # of a request's body
_MOST_IGNORED = 2**16  # bytes of a refused request that are read


class _Waiting:
    """A request that waits in line, or was answered."""

    def __init__(self, call: ModelCall, hung_up: Callable[[], bool]) -> None:
        self.call, self.hung_up = call, hung_up
        self.answer: Answer | None = None


class Session:
    """The calls of one agent, answered in turn. `Gateway.open` makes it.

    Attributes:
        key: The secret in its URL.
        base_url: The base URL for the agent's client, with any API key.
    """

    def __init__(self, gateway: Gateway, temperature: float | None, strict: bool) -> None:
        self.key = secrets.token_urlsafe(24)
        self.base_url = f"{gateway.url}/{self.key}/v1"
        self.temperature, self.strict = temperature, strict
        self._gateway = gateway
        self._changed = threading.Condition()
        self._line: deque[_Waiting] = deque()
        self._taken: _Waiting | None = None
        self._answered: deque[_Waiting] = deque(maxlen=_KEPT)
        self._end: Refusal | None = None
        self._last: ModelAnswer | None = None
        self._connections: dict[socket.socket, bool] = {}  # whether each is idle, between two requests
        self._closed = False

    def next_call(self, timeout_s: float) -> ModelCall | None:
        """Waits at most `timeout_s` seconds for the agent's next request.

        Returns:
            The request that was taken and isn't answered yet, or else the first in line; None if none came in time, or if the
            session has ended.
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

    def answer(self, call: ModelCall, answer: ModelAnswer) -> None:
        """Answers the request that `next_call` returned. Does nothing if the session has ended meanwhile."""
        with self._changed:
            if self._taken is not None and self._taken.call is call:
                self._taken.answer = answer
                self._answered.append(self._taken)
                self._taken = None
                self._changed.notify_all()
            else:
                assert self._end is not None, "next_call() did not return this call, or it is answered"

    def end(self, answer: Refusal, last: ModelAnswer | None = None) -> None:
        """Answers every waiting and every later request with `answer`. A second end does nothing.

        The first of these requests gets `last` instead. An agent that never stops calling is then stopped by `answer`.
        """
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
                    _shut(connection)

    def _request(self, call: ModelCall, again: bool, hung_up: Callable[[], bool]) -> _Waiting:
        """Puts a request in line, or finds the earlier one that it retries."""
        with self._changed:
            known = (*([self._taken] if self._taken else []), *self._line, *reversed(self._answered))
            for earlier in known:
                if earlier.call.body_hash == call.body_hash and (again or earlier.hung_up()):
                    earlier.hung_up = hung_up
                    return earlier
            waiting = _Waiting(call, hung_up)
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

    def _wait(self, waiting: _Waiting, hung_up: Callable[[], bool]) -> Answer | None:
        """The answer to a request; None if its client hung up."""
        with self._changed:
            while not hung_up():
                if waiting.answer is not None:
                    return waiting.answer
                self._changed.wait(_LOOK_S)
            if waiting in self._line and waiting.hung_up is hung_up:
                self._line.remove(waiting)
            return None

    def _begin(self, connection: socket.socket) -> None:
        """A request begins on a connection. If the session has too many, one that is idle makes room."""
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
                _shut(idle)
                del self._connections[idle]
            self._connections[connection] = False

    def _pause(self, connection: socket.socket) -> bool:
        """A connection waits for its next request. Returns False if there is none, because the session is closed."""
        with self._changed:
            self._connections[connection] = True
            return not self._closed

    def _leave(self, connection: socket.socket) -> None:
        """A connection ends, or goes on in another session."""
        with self._changed:
            self._connections.pop(connection, None)

    def _end_one(self, waiting: _Waiting) -> None:
        """Answers a request after the end."""
        waiting.answer = self._last or self._end
        self._answered.append(waiting)
        self._last = None


class Gateway(ThreadingHTTPServer):
    """The server, in a thread; a context manager. Whoever knows a session's key can use the session.

    Attributes:
        url: ``http://HOST:PORT``.
        sessions: The open sessions by their keys.
        descriptors: The most that this process may have.
    """

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.sessions: dict[str, Session] = {}
        self.descriptors = _descriptors()
        self._strangers: dict[socket.socket, None] = {}
        self._noted: set[str] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, name="eh-gateway", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, temperature: float | None = None, *, strict: bool = False) -> Session:
        """Opens a session. `read_call` says what its requests may ask for."""
        session = Session(self, temperature, strict)
        self.sessions[session.key] = session
        return session

    def note(self, overridden: Sequence[str]) -> None:
        """Warns once of each option of requests that has no effect."""
        with self._lock:
            new = [name for name in overridden if name not in self._noted]
            self._noted.update(new)
        if new:
            warnings.warn(
                f"the agent sets {', '.join(new)}, which has no effect: the run samples in its own way (docs/agents.md); "
                "--agent-sampling strict refuses such calls",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Closes all sessions and stops the server."""
        for session in list(self.sessions.values()):
            session.close()
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection in a thread of its own. The oldest that has named no session makes room for it."""
        with self._lock:
            self._strangers[request] = None
            if len(self._strangers) > max(1, min(self.descriptors // 8, _MOST_STRANGERS)):
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _shut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Ends a connection."""
        self._named(request)
        super().shutdown_request(request)

    def _named(self, connection: socket.socket) -> None:
        """A connection has named a session, or has ended."""
        with self._lock:
            self._strangers.pop(connection, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that are gone. Any other error is a bug in this file."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S
    wbufsize = -1  # one packet for an answer's head and body
    disable_nagle_algorithm = True

    server: Gateway
    _session: Session | None = None  # of the latest request

    def do_GET(self) -> None:
        try:
            _, route = self._place()
            kind, _, name = route.partition("/")
            if kind != "models":
                raise Refusal(f"GET knows /models only, not /{route}", status=405, code="method_not_allowed")
            self._send(200, json.dumps(model_list(unquote(name))["data"][0] if name else model_list()).encode())
        except Refusal as refusal:
            self._refuse(refusal)

    def do_POST(self) -> None:
        content: bytes | None = None
        try:
            session, route = self._place()
            content = self._content()
            session._begin(self.connection)
        except Refusal as refusal:
            if content is None:  # the rest of a large one is not read, so nothing can follow it
                self.close_connection = True
                with suppress(OSError, ValueError):  # without it, the client could lose the answer
                    self.rfile.read(min(max(0, int(self.headers.get("Content-Length", "0"))), _MOST_IGNORED))
            self._refuse(refusal)
            return
        self._answer(session, route, content)
        if not session._pause(self.connection):
            self.close_connection = True

    def finish(self) -> None:
        if self._session is not None:
            self._session._leave(self.connection)
        super().finish()

    def handle_expect_100(self) -> bool:
        """Tells a client at once to send its body. curl waits for this if the body is larger than 1 MiB."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def _answer(self, session: Session, route: str, content: bytes) -> None:
        """Waits for the answer to a request, and sends it."""
        try:
            if route not in _APIS:
                raise Refusal(f"POST knows {' and '.join(_APIS)}, not /{route}", status=405, code="method_not_allowed")
            call = read_call(content, _APIS[route], session.temperature, strict=session.strict)
            self.server.note(call.overridden)
            again = self.headers.get("x-stainless-retry-count", "0") != "0"
            waiting = session._request(call, again, self._hung_up)
            answer = session._wait(waiting, self._hung_up)
            if isinstance(answer, Refusal):
                raise answer
        except Refusal as refusal:
            self._refuse(refusal)
            return
        if answer is None:
            self.close_connection = True
            return
        kind = "text/event-stream" if call.stream else "application/json"
        waiting.hung_up = lambda: False  # must come before the client can retry
        try:
            self._send(200, write_answer(call, answer), kind)
        except OSError:  # the client is gone; its retry gets the answer
            waiting.hung_up = self._hung_up

    def _place(self) -> tuple[Session, str]:
        """The session and the route that the path names."""
        found = _ROUTE.fullmatch(self.path.partition("?")[0])
        if found is None:
            raise Refusal(
                f"expected a path /KEY/v1/ROUTE, ROUTE one of models, {', '.join(_APIS)}", status=404, code="not_found"
            )
        session = self.server.sessions.get(found[1])
        if session is None:
            raise Refusal("no session has this key", status=401, code="invalid_api_key")
        if self._session not in (None, session):  # a client's pool of connections is for all sessions
            self._session._leave(self.connection)
        self._session = session
        self.server._named(self.connection)
        return session, found[2]

    def _content(self) -> bytes:
        """The body of the request."""
        length = self.headers.get("Content-Length")
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower() and length is None:
            return self._chunks()
        if length is None or not length.isdecimal():
            raise Refusal("the request needs a Content-Length", status=411, code="length_required")
        return self._read(int(length), _MOST_BYTES)

    def _chunks(self) -> bytes:
        """A body that says its length piece by piece."""
        content = b""
        with suppress(ValueError):
            while size := int(self.rfile.readline(100).partition(b";")[0], 16):
                content += self._read(size, _MOST_BYTES - len(content))
                if self.rfile.readline(3).strip():
                    break
            else:
                while self.rfile.readline(1000).strip():
                    pass  # fields after the body
                return content
        raise Refusal("the chunks of the body are broken", code="invalid_value")

    def _read(self, size: int, most: int) -> bytes:
        if not 0 <= size <= most:
            raise Refusal(f"a request has at most {_MOST_BYTES} bytes", status=413, code="request_too_large")
        content = self.rfile.read(size)
        if len(content) < size:
            raise Refusal("the body is shorter than its Content-Length", code="invalid_value")
        return content

    def _hung_up(self) -> bool:
        """Whether the client has closed its end."""
        try:
            readable = select.poll()
            readable.register(self.connection, select.POLLIN)
            return bool(readable.poll(0)) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):  # closed here
            return True

    def _refuse(self, refusal: Refusal) -> None:
        with suppress(OSError):
            self._send(refusal.status, json.dumps(refusal.body()).encode())

    def _send(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if status >= 400:
            self.send_header("x-should-retry", str(status == 429).lower())  # OpenAI's clients ask for it
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Does nothing, because the run's log is not the server's."""


def _descriptors() -> int:
    """Raises the number of descriptors that this process may have as far as the system allows, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS refuses "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft >= 0 else 2**20


def _shut(connection: socket.socket) -> None:
    """Ends a connection, whose thread then closes it."""
    with suppress(OSError):  # the client has closed it
        connection.shutdown(socket.SHUT_RDWR)
