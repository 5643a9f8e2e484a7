"""Worlds on another machine, leased from its server (server.py), with the same interface as those of a local host.

This side only exchanges texts. The worlds, the judge and the solutions stay on the server.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import time
import urllib.parse
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eh_gym.errors import (
    ConfigError,
    WorkerCallError,
    WorkerDied,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
    WorkerVersionMismatch,
)
from envs.appworld.hosts import Host, Settings, shared_host
from envs.appworld.server import HEADER, MAX_BYTES, PROTOCOL, checked_token

__all__ = ["TOKEN_VARIABLE", "RemoteHost", "remote_host"]

TOKEN_VARIABLE = "EH_APPWORLD_TOKEN"
_ASK_TIMEOUT_S = 30.0  # for requests that need no world
_OPEN_TIMEOUT_S = 400.0  # the server may have to start its processes first
_STEP_GRACE_S = 20.0  # added to the step's timeout; the server kills a step after 5 s more and reports it
_VERDICTS = 3  # a verdict that fails is tried again, and then without any calls
_VERDICT_GRACE_S = 270.0  # added to the judges' timeouts, for their start
_REUSE_S = 30.0  # a connection that was silent for longer may have been closed on the way
_ERRORS: Mapping[str, type[WorkerError] | type[ConfigError]] = {
    kind.__name__: kind
    for kind in (ConfigError, WorkerCallError, WorkerDied, WorkerProtocolError, WorkerTimeout, WorkerVersionMismatch)
}


class _RemoteWorld:
    """One lease. Only one thread at a time may use it."""

    def __init__(self, host: RemoteHost, lease: str, about: Mapping[str, Any]) -> None:
        self._host, self._lease, self.about = host, lease, about
        self._number = 0
        self._spent_s = 0.0  # by all steps
        self.host_failed = False

    def execute(self, code: str) -> Mapping[str, Any]:
        began = time.monotonic()
        try:
            return self._ask("execute", {"code": code}, self._host.settings.step_timeout_s + _STEP_GRACE_S)
        finally:
            self._spent_s += time.monotonic() - began

    def verdict(self) -> Mapping[str, Any]:
        judge_s = self._host.settings.judge_timeout_s + self._spent_s
        return self._ask("verdict", {}, _VERDICTS * judge_s + _VERDICT_GRACE_S)

    def close(self) -> None:
        with contextlib.suppress(WorkerError, ConfigError):  # the server ends it when nobody uses it
            self._host.call("end", {"lease": self._lease}, timeout_s=5.0, patience_s=0.0)

    def _ask(self, method: str, body: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        self._number += 1
        try:
            answer = self._host.call(method, {"lease": self._lease, "number": self._number, **body}, timeout_s)
        except (WorkerError, ConfigError) as error:
            self.host_failed = True
            if isinstance(error, WorkerError):
                raise
            raise WorkerCallError(str(error)) from error
        if "lost" in answer:
            raise _told(answer["lost"], answer["message"])
        return dict(answer)


@dataclass
class _Connection:
    pid: int  # of the process that made it; a forked child must not use its parent's connection
    http: http.client.HTTPConnection
    used: float


class RemoteHost:
    """A host that gets its worlds from a server. Thread-safe: each thread keeps a connection of its own.

    Args:
        url: The server's address, such as http://127.0.0.1:8765. Use https or a path if a proxy in front of the server does.
        token: The server's token.
        settings: What a world may do. The server decides whether it is confined.
        patience_s: For so many seconds, and within the request's deadline, a request whose connection broke is sent again.
            The server does nothing twice.

    Raises:
        ConfigError: The url or the token is not valid.
    """

    def __init__(self, url: str, token: str, settings: Settings, patience_s: float = 10.0) -> None:
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or "@" in parts.netloc:
            raise ConfigError(f"url must be like http://127.0.0.1:8765, got {url!r}")
        self.settings, self._url, self._patience_s = settings, url.rstrip("/"), patience_s
        self._address, self._path = (parts.hostname, port), parts.path.rstrip("/")
        self._http = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._headers = {
            "Authorization": f"Bearer {checked_token(token)}",
            "Content-Type": "application/json",
            HEADER: PROTOCOL,
        }
        self._client = uuid.uuid4().hex
        self._wire = {
            "step_timeout_s": settings.step_timeout_s,
            "max_api_calls": settings.max_api_calls,
            "max_output_chars": settings.max_output_chars,
            "memory_mb": settings.memory_mb,
        }
        self._references: dict[tuple[str, str], Sequence[str] | None] = {}
        self._threads = threading.local()

    def task_ids(self, split: str) -> Sequence[str]:
        """See Host. The server may have fewer splits than AppWorld."""
        return tuple(self.call("task_ids", {"split": split}, _ASK_TIMEOUT_S))

    def reference(self, split: str, task_id: str) -> Sequence[str] | None:
        """See Host."""
        if (split, task_id) not in self._references:
            steps = self.call("reference", {"split": split, "task_id": task_id}, _ASK_TIMEOUT_S)
            self._references[split, task_id] = steps
        return self._references[split, task_id]

    def open(self, task_id: str) -> _RemoteWorld:
        """See Host."""
        lease = uuid.uuid4().hex
        body = {"client": self._client, "lease": lease, "task_id": task_id, "settings": self._wire}
        try:
            return _RemoteWorld(self, lease, self.call("open", body, _OPEN_TIMEOUT_S))
        except WorkerTimeout:
            _RemoteWorld(self, lease, {}).close()
            raise

    def prepare(self, task_ids: Sequence[str]) -> None:
        """See Host. If the server does not answer, nothing is made ahead, and the next `open` raises the error."""
        body = {"client": self._client, "task_ids": list(task_ids), "settings": self._wire}
        with contextlib.suppress(WorkerError):
            self.call("prepare", body, timeout_s=5.0, patience_s=0.0)

    def close(self) -> None:
        """Ends this client's leases. Other clients of the server keep theirs."""
        with contextlib.suppress(WorkerError, ConfigError):
            self.call("leave", {"client": self._client}, timeout_s=5.0, patience_s=0.0)
        self._disconnect()

    def call(self, method: str, body: Mapping[str, Any], timeout_s: float, patience_s: float | None = None) -> Any:
        """Makes one request and returns its result. If the connection breaks, the request is sent again.

        Args:
            method: One of the server's methods.
            body: The method's parameters.
            timeout_s: The seconds for the whole request, with all attempts.
            patience_s: The seconds from the first failure to the last attempt; None for the host's ``patience_s``.

        Raises:
            WorkerTimeout: No answer came in time.
            WorkerDied: The server cannot be reached, or the lease has ended.
            WorkerProtocolError: Something else than a server of worlds answers.
            WorkerVersionMismatch: The server has another version.
            WorkerCallError: The server refused, or has no room.
            ConfigError: The token, the task, the split or a setting is wrong.
        """
        data = json.dumps(body).encode("ascii")
        if len(data) > MAX_BYTES:
            raise WorkerCallError(f"a request of {len(data):,} bytes; {MAX_BYTES:,} are allowed")
        patience_s = self._patience_s if patience_s is None else patience_s
        deadline, give_up, pause = time.monotonic() + timeout_s, None, 0.05
        while True:
            reused = getattr(self._threads, "connection", None) is not None
            try:
                status, version, answer = self._exchange(method, data, deadline)
                break
            except (OSError, http.client.HTTPException) as error:
                self._disconnect()
                now = time.monotonic()
                if isinstance(error, TimeoutError) and now > deadline - 0.05:
                    raise WorkerTimeout(f"{self._url} did not answer {method!r} within {timeout_s:g} s") from error
                if give_up is None:
                    give_up = min(now + patience_s, deadline)
                if not reused and now + pause > give_up:
                    raise WorkerDied(
                        f"{self._url} cannot be reached ({type(error).__name__}: {error}); "
                        "is `python -m envs serve appworld` running there?"
                    ) from error
                if not reused:
                    time.sleep(pause)
                    pause = min(2 * pause, 1.0)
        if version != PROTOCOL:
            if version is None:
                raise WorkerProtocolError(
                    f"what answers at {self._url} (status {status}) is no server of AppWorld's worlds"
                )
            raise WorkerVersionMismatch(f"{self._url} speaks protocol {version}, this client {PROTOCOL}")
        return self._result(status, answer)

    def _exchange(self, method: str, data: bytes, deadline: float) -> tuple[int, str | None, bytes]:
        connection = self._connection(deadline)
        connection.http.request("POST", f"{self._path}/{method}", data, self._headers)
        _limit(connection.http, deadline)
        response = connection.http.getresponse()
        version = response.getheader(HEADER)
        if version is None and response.status in (502, 503, 504):
            raise http.client.HTTPException(f"a proxy says {response.status}")
        answer = response.read()
        connection.used = time.monotonic()
        return response.status, version, answer

    def _connection(self, deadline: float) -> _Connection:
        kept: _Connection | None = getattr(self._threads, "connection", None)
        if kept is not None and (kept.pid != os.getpid() or time.monotonic() - kept.used > _REUSE_S):
            self._disconnect()
            kept = None
        if kept is None:
            kept = _Connection(os.getpid(), self._http(*self._address), time.monotonic())
            _limit(kept.http, deadline, at_most_s=max(self._patience_s, 1.0))
            kept.http.connect()
            self._threads.connection = kept
        _limit(kept.http, deadline)
        return kept

    def _disconnect(self) -> None:
        kept: _Connection | None = getattr(self._threads, "connection", None)
        if kept is not None:
            kept.http.close()
            self._threads.connection = None

    def _result(self, status: int, data: bytes) -> Any:
        try:
            answer = json.loads(data)
            if status == 200:
                return answer["result"]
            kind, message = str(answer["error"]["kind"]), str(answer["error"]["message"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WorkerProtocolError(f"{self._url} sent an answer that is none (status {status})") from error
        message = f"{self._url}: {message}"
        if status == 401:
            raise ConfigError(message)
        if status in (404, 410):
            raise WorkerDied(message)
        raise _told(kind, message)


def remote_host(url: str, token: str | None, settings: Settings) -> Host:
    """The host that all environments of this process with the same server and settings share. It ends with the process.

    Raises:
        ConfigError: There is no token, or the url or the token is not valid.
    """
    token = token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise ConfigError(
            f"the server at {url} needs a token; set the environment variable {TOKEN_VARIABLE}, or pass token="
        )
    return shared_host((url, token, settings), lambda: RemoteHost(url, token, settings))


def _limit(connection: http.client.HTTPConnection, deadline: float, at_most_s: float = 1e6) -> None:
    """Gives the connection's next operations the time that is left until the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.timeout = min(left, at_most_s)
    if connection.sock is not None:
        connection.sock.settimeout(connection.timeout)


def _told(kind: str, message: str) -> WorkerError | ConfigError:
    return _ERRORS.get(kind, WorkerCallError)(message)
