"""The record of an episode's API calls, which a judge makes again. It comes from a process whose code may forge all of it.

Whatever the process sends, a record stays within its bounds: the number of calls of a step, the form of a call, and the bytes
of all calls as they go to the judge. The record is kept as those bytes, so the bound holds for this process's memory too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.appworld.backend import wire

__all__ = ["MAX_EPISODE_BYTES", "Record"]

MAX_EPISODE_BYTES = 32 * 2**20  # of all calls of an episode, as JSON; 50,000 usual calls take 10 to 20 MB
_MAX_HEADERS = 32  # of a call; the engine's client sends two
_FIELDS = ("method", "url", "headers", "body", "status")


class Record:
    """The calls of one episode.

    Args:
        max_calls: The number of calls that one step may make.
    """

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self.frames: list[bytes] = []  # a message to a judge for each step that made calls
        self.size = 0  # bytes of all frames

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """All calls, in their order."""
        return [call for frame in self.frames for call in wire.unframe(frame)["calls"]]

    @property
    def room_bytes(self) -> int:
        """How many bytes of JSON the next step's calls may take."""
        return max(0, min(wire.MAX_CALLS_BYTES, MAX_EPISODE_BYTES - self.size))

    def add(self, calls: Any) -> int:
        """Adds a step's calls and returns their number.

        Raises:
            ValueError: There are too many calls, they are too large, or they are malformed. Nothing was added.
        """
        if not isinstance(calls, list):
            raise ValueError("expected a list of API calls")
        if len(calls) > self._max_calls:
            raise ValueError(f"{len(calls):,} API calls in one step; {self._max_calls:,} are allowed")
        if calls:
            frame = wire.frame(wire.encode({"calls": [_checked(call) for call in calls]}))
            # The record's own brackets, and a comma after each call.
            if len(frame) > self.room_bytes + 64 + len(calls):
                raise ValueError(f"API calls of {len(frame):,} bytes; {self.room_bytes:,} are allowed")
            self.frames.append(frame)
            self.size += len(frame)
        return len(calls)


def _checked(call: Any) -> Mapping[str, Any]:
    if not (isinstance(call, dict) and set(call) == set(_FIELDS)):
        raise ValueError("an API call has the wrong form")
    headers, status = call["headers"], call["status"]
    if not (isinstance(headers, dict) and len(headers) <= _MAX_HEADERS):
        raise ValueError("an API call has the wrong form")
    if not all(isinstance(text, str) for text in (call["method"], call["url"], call["body"], *headers.values())):
        raise ValueError("an API call has the wrong form")
    if not (status is None or (type(status) is int and 0 <= status < 600)):
        raise ValueError("an API call has the wrong form")
    return call
