"""Records the API calls of the agent's world, and makes them again in the judge's world.

A call is one HTTP request from outside the apps. The requests of one app to another are not recorded, and neither are the world's
own, such as the check whether the task is complete.
"""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from . import wire

# Headers that the client adds to every request and that no endpoint reads.
_IGNORED_HEADERS = frozenset(
    ("host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "cookie")
)

COMPLETE_TASK = "/supervisor/message"  # the path to which apis.supervisor.complete_task posts

# {"method", "url": path and query, "headers": {...}, "body": str, "status"}. The status is 0 if the application raised instead
# of answering.
Call = Mapping[str, Any]

_FIELDS = {"method", "url", "headers", "body", "status"}
_MAX_HEADERS = 32  # of a call; the engine's client sends two
_STATUS_BYTES = 8  # at least as much as a status takes in JSON, with a comma


def checked(calls: Any, max_calls: int) -> list[Call]:
    """The recorded calls of one step. The agent's code may have forged them, so this looks at their form.

    Raises:
        ValueError: There are more than ``max_calls``, or one has the wrong form.
    """
    if not (isinstance(calls, list) and all(map(_well_formed, calls))):
        raise ValueError("expected a list of API calls; one has the wrong form")
    if len(calls) > max_calls:
        raise ValueError(f"{len(calls):,} API calls in one step; {max_calls:,} are allowed")
    return calls


def _well_formed(call: Any) -> bool:
    if not (isinstance(call, dict) and set(call) == _FIELDS and isinstance(call["headers"], dict)):
        return False
    texts, status = (call["method"], call["url"], call["body"], *call["headers"].values()), call["status"]
    return (
        all(isinstance(text, str) for text in texts)
        and len(call["headers"]) <= _MAX_HEADERS
        and type(status) is int
        and 0 <= status < 600
    )


class Line:
    """An httpx transport between a world's client and its apps. It records the calls.

    It also gives the engine a random stream of its own. Without that, the engine and the agent's code would share Python's
    random generator: code that draws a number between two calls would change the second call's access token or file
    content, and a judge, which makes only the calls, would get other values. Code that draws no number sees no difference.

    It holds the limits on calls where the agent sees them as an exception, and its episode goes on. The environment holds the
    same limits against code that gets past this object (record.py).

    Args:
        transport: The client's own transport.
        max_calls: The number of calls that one step may make.
    """

    def __init__(self, transport: Any, max_calls: int) -> None:
        self._transport, self._max_calls = transport, max_calls
        self.random_state = random.getstate()
        self._inside = False
        self._room_bytes = 0
        self.recording: list[dict[str, Any]] | None = None

    def record(self, room_bytes: int) -> None:
        """Begins the record of a step, with a limit on its bytes of JSON."""
        self.recording, self._room_bytes = [], room_bytes

    def handle_request(self, request: Any) -> Any:
        """Makes one request. It is part of httpx's transport interface."""
        if self._inside:
            return self._transport.handle_request(request)
        # The engine's timeout comes as this signal's exception. In the middle, it would leave a call on the record that this
        # world has not made; inside an endpoint, it would become the endpoint's answer.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGALRM,))
        try:
            return self._recorded(request)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))

    def _recorded(self, request: Any) -> Any:
        entry = None if self.recording is None else self._entry(request)
        outer = random.getstate()
        random.setstate(self.random_state)
        self._inside = True
        try:
            response = self._transport.handle_request(request)
            if entry is not None:
                entry["status"] = response.status_code
            return response
        finally:
            self._inside = False
            self.random_state = random.getstate()
            random.setstate(outer)

    def _entry(self, request: Any) -> dict[str, Any]:
        """Puts a call on the record.

        Raises:
            RuntimeError: The step has made as many calls as it may, or calls of as many bytes.
        """
        assert self.recording is not None
        if len(self.recording) >= self._max_calls:
            raise RuntimeError(
                f"Not called: a step may make {self._max_calls:,} API calls, and this one has made them."
            )
        entry: dict[str, Any] = {
            "method": request.method,
            "url": request.url.raw_path.decode("ascii"),
            "headers": {k: v for k, v in request.headers.items() if k not in _IGNORED_HEADERS},
            "body": request.read().decode("utf-8", "surrogateescape"),
            "status": 0,  # until the application answers; it may raise instead
        }
        size = len(wire.encode(entry)) + _STATUS_BYTES
        if size > self._room_bytes:
            raise RuntimeError(
                f"Not called: this API call takes {size:,} bytes, and the calls of this step may take {self._room_bytes:,} more."
            )
        self._room_bytes -= size
        self.recording.append(entry)
        return entry

    def close(self) -> None:
        """Closes the transport. It is part of httpx's transport interface."""
        self._transport.close()


def tap(world: Any, max_calls: int) -> Line:
    """Puts a Line between a world's client and its apps. One step may make ``max_calls`` calls."""
    client = world.requester.client
    client._transport = Line(client._transport, max_calls)
    return client._transport  # type: ignore[no-any-return]


def public_routes() -> Callable[[str, str], tuple[str, str] | None]:
    """Returns a function from (method, path) to the (app, API) in the agent's API documents, or None if they list none.

    They list no paths of the engine itself (/dbs, /seed, /date_time, the admin app), which an agent could call through
    ``requester``, and no paths that do not exist.
    """
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection

    routes = []
    for app, documents in ApiDocCollection.load(load_apps=tuple(get_all_apps(skip_admin=True))).items():
        for api, document in documents.items():
            pattern, holes = re.subn(r"\\\{[^}]*\\\}", "[^/]+", re.escape(document["path"]))
            routes.append((document["method"].upper(), re.compile(pattern + "/?"), (app, api), holes))
    routes.sort(key=lambda route: route[3])  # /songs/all before /songs/{id}

    def find(method: str, path: str) -> tuple[str, str] | None:
        for known, pattern, name, _ in routes:
            if known == method and pattern.fullmatch(path):
                return name
        return None

    return find


def make(world: Any, call: Call, find: Callable[[str, str], tuple[str, str] | None]) -> int | None:
    """Makes a recorded call in a world.

    Returns:
        The call's status, 0 if the application raised instead of answering, or None if the call was not made because it is no
        public API. Calls of the API documents are not made either, and get the status that was recorded.
    """
    import httpx

    try:
        request = httpx.Request(
            call["method"],
            "http://testserver" + call["url"],
            headers=dict(call["headers"]),
            content=call["body"].encode("utf-8", "surrogateescape"),
        )
        public = find(request.method, unquote(request.url.path))  # the path as the application will see it
    except Exception:  # no client could have sent this request; the agent's code has forged it
        return None
    if public is None:
        return None
    if public[0] == "api_docs":  # not made: it reads constant documents, and draws no random number
        return int(call["status"])
    try:
        return int(world.requester.client._transport.handle_request(request).status_code)
    except Exception:  # as in the agent's world: for example, an app gets a number that its database cannot hold
        return 0
