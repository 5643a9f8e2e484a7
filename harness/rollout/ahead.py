"""The calls that an agent makes at once. They are requested at once, and each stays a step of its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from harness.agents.protocol import ModelCall


class Ahead:
    """The requests for calls of an agent that wait behind the present one.

    A reply is kept until its call is the present one. It is dropped if another reply has changed the conversation
    meanwhile. The requests are named ``(session, number)``.
    """

    def __init__(self, session: Hashable) -> None:
        self._session = session
        self._calls: dict[Hashable, tuple[ModelCall, Sequence[Any]]] = {}
        self._refused: list[ModelCall] = []
        self._made = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def names(self) -> list[Hashable]:
        return list(self._calls)

    @property
    def tokens(self) -> int:
        return sum(len(prompt) for _, prompt in self._calls.values()) if self._calls else 0

    def new(self, waiting: Iterable[ModelCall], room: int) -> list[ModelCall]:
        """At most `room` waiting calls that have no request yet."""
        known = [*(call for call, _ in self._calls.values()), *self._refused]
        return [call for call in waiting if not any(call is one for one in known)][: max(0, room)]

    def add(self, call: ModelCall, prompt: Sequence[Any]) -> Hashable:
        """Names the request for a call."""
        self._made += 1
        self._calls[self._session, self._made] = call, prompt
        return self._session, self._made

    def refuse(self, call: ModelCall) -> None:
        """Leaves a call to its own turn, because it can't be requested now."""
        self._refused.append(call)

    def clear(self) -> None:
        """Forgets all calls. Later requests get other names."""
        self._calls.clear()
        self._refused.clear()

    def take(self, call: ModelCall | None, prompt: Sequence[Any]) -> Hashable | None:
        """Takes out the request for a call with this prompt. Returns its name, or None if there is none."""
        matches = (name for name, (known, read) in self._calls.items() if known is call and read == prompt)
        name = next(matches, None)
        self._calls.pop(name, None)
        return name
