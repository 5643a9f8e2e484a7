"""Serves a host's worlds to other machines over HTTP, with JSON in both directions and a token in every request.

A request is ``POST /METHOD`` with a JSON object. The methods are those of leases.py. A request without the token gets only
a refusal. The server has no TLS: put it behind ``ssh -L`` or a proxy that has TLS.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import socket
import socketserver
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eh_gym.errors import ConfigError, EHError, WorkerError, WorkerVersionMismatch
from envs.appworld.hosts import Settings
from envs.appworld.leases import Leases, Refused

__all__ = ["HEADER", "MAX_BYTES", "PROTOCOL", "Server", "checked_token", "is_loopback"]

PROTOCOL = "2"
HEADER = "X-EH-AppWorld"  # carries PROTOCOL in requests and answers
MAX_BYTES = 4 * 2**20  # of a request
_QUIET_S = 60.0  # a connection that is silent for so long is closed; clients open a new one
_ID = re.compile(r"[0-9a-f]{32}")
_TOKEN = re.compile(r"[!-~]{16,200}")

_SETTINGS: Mapping[str, type] = {
    "step_timeout_s": float,
    "max_api_calls": int,
    "max_output_chars": int,
    "memory_mb": int,
}


class Server(ThreadingHTTPServer):
    """An HTTP server with one thread per connection. Without the token, it reads only the head of a request.

    Args:
        leases: The leases to serve. The caller closes them.
        token: The token that clients must send.
        host: The address to listen on.
        port: The port to listen on. 0 chooses a free one, which ``url`` then shows.

    Raises:
        ConfigError: The token is too short or too long, or holds something other than visible ASCII.
        OSError: The address is in use, or does not belong to this machine.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, leases: Leases, token: str, host: str = "127.0.0.1", port: int = 8765) -> None:
        self.leases, self.token = leases, checked_token(token)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The server's address for a client on this machine."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if self.address_family == socket.AF_INET6 else f"http://{host!s}:{port}"

    def server_bind(self) -> None:
        """Binds the socket without looking up the host's name, which can take seconds and is not needed."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing. The standard library would print a traceback for each client that hangs up."""


def checked_token(token: str) -> str:
    """Returns the token if it is valid.

    Raises:
        ConfigError: The token does not have 16 to 200 characters of visible ASCII.
    """
    if not _TOKEN.fullmatch(token):
        raise ConfigError("a token must have 16 to 200 characters of visible ASCII, without spaces")
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_Method = Callable[[Leases, Mapping[str, Any]], Any]


class _Broken(Exception):
    """The connection broke in the middle of a request, or was silent for too long."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "elastic-horizon", ""
    timeout = _QUIET_S
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answers one request."""
        status: int = HTTPStatus.OK
        try:
            method, body = self._request()
            answer: Mapping[str, Any] = {"result": method(self.server.leases, body)}
        except _Broken:
            self.close_connection = True
            return
        except (Refused, ConfigError, WorkerError) as error:
            status = _status(error)
            answer = _error(type(error).__name__, str(error))
        except Exception as error:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            answer = _error("WorkerCallError", f"the server failed: {type(error).__name__}: {error}")
        self._send(status, answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Sends the standard library's error for a request that is not HTTP or not POST, as JSON like all other answers."""
        self.close_connection = True
        self._send(code, _error("Refused", message or HTTPStatus(code).phrase))

    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing: the server keeps no log."""

    def _request(self) -> tuple[_Method, Mapping[str, Any]]:
        self._authorize()
        version = self.headers.get(HEADER)
        if version != PROTOCOL:
            self.close_connection = True  # because the body is not read
            raise WorkerVersionMismatch(f"the server speaks protocol {PROTOCOL}, the client {version or 'none'}")
        body = self._body()
        method = _METHODS.get(self.path.rpartition("/")[2])
        if method is None:
            raise Refused(404, f"there is no method {self.path[:100]!r}")
        return method, body

    def _authorize(self) -> None:
        shown = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(shown, f"Bearer {self.server.token}".encode("ascii")):
            self.close_connection = True
            raise Refused(401, "wrong token; it is the server's --token, --token-file or EH_APPWORLD_TOKEN")

    def _body(self) -> Mapping[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise Refused(411, "a request needs a Content-Length")
        if len(length) > 12 or int(length) > MAX_BYTES:
            self.close_connection = True
            raise Refused(413, f"a request may have {MAX_BYTES:,} bytes, this one has {length[:20]}")
        try:
            data = self.rfile.read(int(length))
        except OSError as error:
            raise _Broken from error
        if len(data) < int(length):
            raise _Broken
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the request is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refused(400, "the request is no JSON object")
        return body

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        data = json.dumps(answer).encode("ascii")
        self.send_response(status)
        self.send_header(HEADER, PROTOCOL)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def _status(error: EHError) -> int:
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, (ConfigError, WorkerVersionMismatch)):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.BAD_GATEWAY


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message}}


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise Refused(400, f"{name!r} must be a text")
    return value


def _id(body: Mapping[str, Any], name: str) -> str:
    value = _text(body, name)
    if not _ID.fullmatch(value):
        raise Refused(400, f"{name!r} must be 32 hexadecimal digits")
    return value


def _number(body: Mapping[str, Any]) -> int:
    value = body.get("number")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refused(400, "'number' must be a whole number from 1")
    return value


def _texts(body: Mapping[str, Any], name: str) -> list[str]:
    value = body.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Refused(400, f"{name!r} must be a list of texts")
    return value


def _settings(body: Mapping[str, Any]) -> Settings:
    """A client's settings. The server decides whether worlds are confined and which adaptations of the engine they use."""
    given = body.get("settings")
    if not isinstance(given, dict) or set(given) != set(_SETTINGS):
        raise Refused(400, f"'settings' must have {', '.join(_SETTINGS)}, and nothing else")
    for name, kind in _SETTINGS.items():
        value: Any = given[name]
        if type(value) not in (int, kind) or not abs(value) < 1e9:  # not NaN either
            raise Refused(400, f"{name} must be {'a number' if kind is float else 'a whole number'}, got {value!r:.50}")
    return Settings(**given)


_METHODS: Mapping[str, _Method] = {
    "task_ids": lambda leases, body: leases.task_ids(_text(body, "split")),
    "reference": lambda leases, body: leases.reference(_text(body, "split"), _text(body, "task_id")),
    "open": lambda leases, body: leases.open(
        _id(body, "client"), _id(body, "lease"), _text(body, "task_id"), _settings(body)
    ),
    "execute": lambda leases, body: leases.execute(_id(body, "lease"), _number(body), _text(body, "code")),
    "verdict": lambda leases, body: leases.verdict(_id(body, "lease"), _number(body)),
    "end": lambda leases, body: leases.end(_id(body, "lease")),
    "prepare": lambda leases, body: leases.prepare(_id(body, "client"), _texts(body, "task_ids"), _settings(body)),
    "leave": lambda leases, body: leases.leave(_id(body, "client")),
}
