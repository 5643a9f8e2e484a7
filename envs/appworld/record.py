"""The record of an episode's API calls, which a judge makes again. Code may have forged all of it.

It is kept as bytes and never parsed in this process: the judge checks the form of the calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.appworld.backend import wire

__all__ = ["MAX_EPISODE_BYTES", "Record"]

MAX_EPISODE_BYTES = 32 * 2**20  # of all calls of an episode, as JSON; 50,000 usual calls take 10 to 20 MB
_BRACKETS = 64  # more than the brackets of a list of calls take in JSON


class Record:
    """The calls of one episode."""

    def __init__(self) -> None:
        self.steps: list[bytes] = []  # JSON: the list of the calls of each step that made some
        self.size = 0  # bytes of all steps

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """All calls, in their order. Ask only after a judge has made them: they may have been forged."""
        return [call for step in self.steps for call in json.loads(step)]

    @property
    def room_bytes(self) -> int:
        """How many bytes of JSON the next step's calls may take."""
        return max(0, min(wire.MAX_CALLS_BYTES, MAX_EPISODE_BYTES - self.size))

    @property
    def longest_bytes(self) -> int:
        """The longest list of calls that may be added."""
        return self.room_bytes + _BRACKETS

    def add(self, calls: bytes) -> None:
        """Adds the calls of a step."""
        if calls != b"[]":
            self.steps.append(calls)
            self.size += len(calls)
