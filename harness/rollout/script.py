"""Players without a model: scripts, such as an environment's own expert."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from eh_gym.errors import WorkerError
from harness.agents.protocol import ModelCall
from harness.rollout.conversation import Info, NoRoom
from harness.types.trajectory import Turn


class ScriptRequest(NamedTuple):
    """The request for a script's next action."""

    session: Hashable
    action: Callable[[], str]


class Script:
    """A `Player` that calls the function of each request."""

    def __init__(self) -> None:
        self._requests: list[ScriptRequest] = []

    @property
    def pending(self) -> int:
        return len(self._requests)

    def submit(self, request: ScriptRequest) -> None:
        self._requests.append(request)

    def step(self) -> list[tuple[ScriptRequest, Any]]:
        """All requests with their actions, or with what they raised."""
        requests, self._requests = self._requests, []
        return [(request, _answer(request)) for request in requests]

    def end_session(self, session: Hashable) -> None:
        self._requests = [request for request in self._requests if request.session != session]


class ScriptConversation:
    """A `Conversation` of texts alone. `action` returns the script's next action."""

    def __init__(self, action: Callable[[], str]) -> None:
        self._action = action

    def prompt(self, call: ModelCall | None = None) -> Sequence[Any]:
        """Nothing: a script looks at the environment."""
        return ()

    def request(self, session: Hashable, prompt: Any, seed: int, call: ModelCall | None = None) -> ScriptRequest:
        return ScriptRequest(session, self._action)

    def act(self, reply: str) -> tuple[Turn, str]:
        return Turn(reply, "", cut=False, malformed=False), reply

    def answered(self, info: Info) -> None: ...


def _answer(request: ScriptRequest) -> str | Exception:
    try:
        return request.action()
    except (WorkerError, NoRoom) as error:
        return error
