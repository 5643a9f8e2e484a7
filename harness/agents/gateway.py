"""The endpoint that agents talk to: one HTTP server per process, one session per agent.

Each waiting request holds a thread and a descriptor of the trainer. The sessions share an eighth of the descriptors.
Another eighth is for connections that have named no session yet.
"""

import functools
import json
import re
import select
import socket
import sys
import threading
import warnings
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote
from urllib.request import Request, urlopen

from eh_gym.processes import most_files
from harness.agents.hosted import read_hosted_call, remember
from harness.agents.protocol import Api, Refusal, model_list, read_call
from harness.agents.session import Connections, Session, Waiting
from harness.agents.writing import write_answer

_ROUTE = re.compile(r"/([\w-]+)/v1/(.+?)/?")
_APIS: dict[str, Api] = {"chat/completions": "chat", "responses": "responses"}
_SILENCE_S = 60.0  # after which a silent connection is closed
_UPSTREAM_S = 300.0  # for an answer of the upstream endpoint
_MOST_STRANGERS = 1024  # connections that have named no session yet
_MOST_CONNECTIONS = 320  # of a session
_MOST_BYTES = 8 * 2**20  # of a request's body
_MOST_IGNORED = 2**16  # bytes of a refused request that are read


class Gateway(ThreadingHTTPServer):
    """The server, in a thread; a context manager. `sessions` are the open ones by their keys."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.sessions: dict[str, Session] = {}
        self.open = functools.partial(Session, self.sessions, self.url)
        self.descriptors = most_files()
        self.strangers = Connections()
        self._thread = threading.Thread(target=self.serve_forever, name="eh-gateway", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for session in list(self.sessions.values()):
            session.close()
        self.shutdown()
        self.server_close()
        self._thread.join()

    def share(self) -> int:
        return max(1, min(self.descriptors // 8 // max(1, len(self.sessions)), _MOST_CONNECTIONS))

    def process_request(self, request: Any, client_address: Any) -> None:
        self.strangers.begin(request, max(1, min(self.descriptors // 8, _MOST_STRANGERS)), idle=True)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that are gone."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S
    wbufsize = -1  # one packet for an answer's head and body
    disable_nagle_algorithm = True

    server: Gateway
    _last: tuple[Session, Waiting] | None = None  # the request before

    def setup(self) -> None:
        super().setup()
        self._place = self.server.strangers

    def do_POST(self) -> None:
        self._settle()
        content: bytes | None = None
        try:
            session, route = self._named()  # a key is checked before the body is read
            content = self._content() if self.command == "POST" else b""
            kind, _, name = route.partition("/")
            if route in _APIS and self.command == "POST":
                self._answer(session, _APIS[route], content)
            elif kind == "models" and self.command == "GET":
                self._send(200, json.dumps(model_list(unquote(name))["data"][0] if name else model_list()).encode())
            else:
                self._pass_on(session, route, content or None)
        except Refusal as refusal:
            if content is None:  # the rest of the body is not read, so no request can follow it
                self.close_connection = True
                with suppress(OSError, ValueError):  # without it, the client could lose the answer
                    self.rfile.read(min(max(0, int(self.headers.get("Content-Length", "0"))), _MOST_IGNORED))
            with suppress(OSError):
                self._send(refusal.status, json.dumps(refusal.body()).encode())
        if not self._place.pause(self.connection):
            self.close_connection = True

    do_GET = do_POST

    def finish(self) -> None:
        self._settle()
        self._place.leave(self.connection)
        super().finish()

    def handle_expect_100(self) -> bool:
        """Answers at once: curl waits for this with large bodies."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def _settle(self) -> None:
        if self._last is not None:
            session, waiting = self._last
            session.settle(waiting, self._unread)

    def _answer(self, session: Session, api: Api, content: bytes) -> None:
        read = functools.partial(read_hosted_call, said=session.said) if session.hosted else read_call
        call = read(content, api, session.temperature, sampling=session.sampling, items=session.items)
        for name in call.overridden:
            _note(name)
        waiting = session.request(call, self._hung_up)
        answer = session.wait(waiting, self._hung_up, self._unread)
        self._last = session, waiting
        if isinstance(answer, Refusal):
            raise answer
        if answer is None:
            self.close_connection = True
            return
        if answer.body:
            remember(session.said, json.loads(answer.body)["choices"][0]["message"], len(call.messages))
        kind = "text/event-stream" if call.stream else "application/json"
        with suppress(OSError):  # the client has gone; its retry gets the answer
            self._send(200, write_answer(call, answer, session.items), kind)

    def _pass_on(self, session: Session, route: str, content: bytes | None) -> None:
        if not session.upstream:
            raise Refusal(
                f"there are {', '.join(_APIS)} and models here; --agent-upstream names an endpoint for {route}",
                status=404,
                code="not_found",
            )
        headers = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
        url = f"{session.upstream.rstrip('/')}/{self.path.split('/v1/', 1)[1]}"
        try:
            answer: Any = urlopen(Request(url, content, headers, method=self.command), timeout=_UPSTREAM_S)
        except HTTPError as error:
            answer = error
        except OSError as error:
            raise Refusal(f"{session.upstream} can't be reached: {error}", status=502, code="upstream") from None
        with answer:
            self._send(answer.status, answer.read(), answer.headers.get_content_type())

    def _named(self) -> tuple[Session, str]:
        """The session and the route of the path. The connection becomes one of the session's."""
        route = _ROUTE.fullmatch(self.path.partition("?")[0])
        if route is None:
            raise Refusal(
                f"expected a path /KEY/v1/ROUTE, ROUTE one of models, {', '.join(_APIS)}", status=404, code="not_found"
            )
        session = self.server.sessions.get(route[1])
        if session is None:
            raise Refusal("no session has this key", status=401, code="invalid_api_key")
        if not session.connections.begin(self.connection, self.server.share()):
            raise Refusal("too many requests of this session are open", status=429, code="too_many_requests")
        if self._place is not session.connections:  # clients share connections between sessions
            self._place.leave(self.connection)
            self._place = session.connections
        return session, route[2]

    def _content(self) -> bytes:
        length = self.headers.get("Content-Length")
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            self.close_connection = self.close_connection or length is not None  # RFC 9112, 6.3
            return self._chunks()
        if length is None or not length.isdecimal():
            raise Refusal("the request needs a Content-Length", status=411, code="length_required")
        return self._read(int(length), _MOST_BYTES)

    def _chunks(self) -> bytes:
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
        try:
            return self._polled(select.POLLIN) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):  # closed here
            return True

    def _unread(self) -> bool:
        """Whether the client has left an answer unread: its system then resets the connection."""
        return self._polled(0)

    def _polled(self, events: int) -> bool:
        poll = select.poll()
        poll.register(self.connection, events)
        return bool(poll.poll(0))

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
        pass


@functools.cache
def _note(option: str) -> None:
    warnings.warn(
        f"the agent sets {option}, which has no effect (docs/agents.md); --agent-sampling strict refuses such calls",
        RuntimeWarning,
        stacklevel=2,
    )
