"""API calls as they go over the wire: recorded in the agent's world, made again in the judge's.

A call is one HTTP request from outside the apps: what an app asks of another inside a request is not one. Left out: calls
that the world makes for itself, such as looking whether the task is complete.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

# What the client adds to every request and no endpoint reads.
_IGNORED_HEADERS = frozenset(
    ("host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "cookie")
)

COMPLETE_TASK = "/supervisor/message"  # where apis.supervisor.complete_task posts to

Call = Mapping[str, Any]  # {"method", "url": path and query, "headers": {...}, "body": str, "status": int}


class Line:
    """Stands between a world's client and its apps: an httpx transport.

    The engine and the agent's code share Python's random generator, so that code that draws a number between two calls
    would change the second call's access token or file content, and a judge that makes the calls alone would see other
    ones. So the engine draws from a stream of its own. Code that draws none sees no difference.

    Args:
        transport: The client's own.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._random_state = random.getstate()
        self._inside = False
        self.recording: list[dict[str, Any]] | None = None

    def handle_request(self, request: Any) -> Any:
        """As httpx asks of a transport: makes one request."""
        if self._inside:
            return self._transport.handle_request(request)
        outer = random.getstate()
        random.setstate(self._random_state)
        self._inside = True
        entry = None
        if self.recording is not None:
            entry = {
                "method": request.method,
                "url": request.url.raw_path.decode("ascii"),
                "headers": {k: v for k, v in request.headers.items() if k not in _IGNORED_HEADERS},
                "body": request.read().decode("utf-8", "surrogateescape"),
                "status": 0,
            }
            self.recording.append(entry)
        try:
            response = self._transport.handle_request(request)
            if entry is not None:
                entry["status"] = response.status_code
            return response
        finally:
            self._inside = False
            self._random_state = random.getstate()
            random.setstate(outer)

    def close(self) -> None:
        """As httpx asks of a transport."""
        self._transport.close()


def tap(world: Any) -> Line:
    """Puts a Line between a world's client and its apps."""
    client = world.requester.client
    client._transport = Line(client._transport)
    return client._transport  # type: ignore[no-any-return]


def public_routes() -> Callable[[str, str], tuple[str, str] | None]:
    """A function from (method, path) to the (app, API) that the agent's documentation lists there, None for others.

    Others are the engine's own (/dbs, /seed, /date_time, the admin app), which an agent could call through ``requester``,
    and paths that lead nowhere.
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
        Its status, 0 if the application raised instead of answering, or None if it is no public API and was not made.
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
    except Exception:  # no client could have sent that; the agent's code has forged it
        return None
    if public is None:
        return None
    if public[0] == "api_docs":  # reads documents that nobody can change, and draws no random number
        return int(call["status"])
    try:
        return int(world.requester.client._transport.handle_request(request).status_code)
    except Exception:  # as it did in the agent's world: an app meets a number that its database cannot hold
        return 0
