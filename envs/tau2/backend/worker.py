"""The worker's side of EH-Tau2. It runs in tau2's virtualenv and holds many episodes at once."""

import json
from typing import Any

from .brief import brief
from .calls import Call, read_message, read_text
from .players import CHECKS, MENU, TABLES, Expert, Script
from .world import World, fits, parameters, policy, tools

_RULES = "You are a telecom agent with access to the customer's phone. Reply with one {}, and with {} at the end."


class _Episode:
    def __init__(self, task_id: str, answers: str, actions: str) -> None:
        self._world, self._brief, self._actions = World(task_id), answers == "brief", actions
        self.ticket = self._world.task.ticket
        self._players: dict[str, Expert | Script] = {
            "expert": Expert(self.ticket),
            **{name: Script(name) for name in TABLES["scripts"]},
        }

    def shown(self, text: str) -> str:
        return brief(text) if self._brief else text

    def step(self, action: str) -> dict[str, Any]:
        try:
            calls = self._read(action)
        except (ValueError, RecursionError) as error:
            return {"observation": f"Error: {str(error)[:200]}", "malformed": True}
        results, malformed = [], False
        for name, arguments in calls:
            if name == "done":
                return {"observation": "done", "malformed": malformed, **self._world.verdict()}
            answer, failed = self._world.call(name, arguments)
            malformed |= failed and not fits(name, arguments)
            word = next((word for word, call in MENU.items() if call == (name, arguments)), name)
            for player in self._players.values():
                player.see(word, answer)
            results.append(self.shown(answer))
        apart = {"tool_results": results} if self._actions == "native" else {}
        return {"observation": "\n".join(results), "malformed": malformed, **apart}

    def _read(self, action: str) -> list[Call]:
        if self._actions == "native":
            return read_message(action)
        if self._actions == "calls":
            return read_text(action, parameters())
        if action.strip() not in MENU:
            raise ValueError("reply with one word of the menu")
        return [MENU[action.strip()]]

    def action(self, player: str, draw: float) -> str:
        word = CHECKS[int(draw * len(CHECKS))] if player == "random" else self._players[player].next()
        name, arguments = MENU[word]
        if self._actions == "native":
            function = {"name": name, "arguments": arguments}
            return json.dumps({"tool_calls": [{"type": "function", "function": function}]})
        return _text(name, arguments) if self._actions == "calls" else word


def _text(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(map(json.dumps, arguments.values()))})"


def _system_prompt(full: bool, actions: str) -> str:
    rules = _RULES.format(*("word of the menu", "done") if actions == "menu" else ("call of a tool", "done()"))
    lines = {
        "menu": [f"{word}: {_text(*call)}" for word, call in MENU.items()],
        "calls": [f"{t['name']}({', '.join(parameters()[t['name']])}): {t['description']}" for t in tools()],
        "native": [],
    }
    return "\n".join([rules, *lines[actions], policy()]) if full else rules


_episodes: dict[int, _Episode] = {}


def handle(method: str, params: dict[str, Any]) -> Any:
    """Answers a call of the environment: start, step, action (the next one of a player) or finish."""
    session, actions = params["session"], params.get("actions", "")
    if method == "step":
        return _episodes[session].step(params["action"])
    if method == "action":
        return _episodes[session].action(params["player"], params["draw"])
    if method == "finish":
        return _episodes.pop(session, None) and None
    assert method == "start", method
    episode = _episodes[session] = _Episode(params["task_id"], params["answers"], actions)
    told = {"system_prompt": _system_prompt(params["policy"] == "full", actions), "instruction": episode.ticket}
    if actions == "native":
        told["tools"] = [{"type": "function", "function": tool} for tool in tools()]
    return {"observation": episode.shown(episode.ticket), **told}
