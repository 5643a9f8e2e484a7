"""EH-Tau2's worker: many episodes at once."""

import json
import re
from typing import Any

from .calls import Call, read_message, read_text
from .players import TABLES, Expert, Script
from .world import OFFICIAL, TOOLS, RunningTask

_PARAMETERS = {tool["name"]: list(tool["parameters"]["properties"]) for tool in TOOLS}
_MENU: dict[str, Call] = {name.replace("_", ""): (name, {}) for name, names in _PARAMETERS.items() if not names}
_MENU |= {word: read_text(call, _PARAMETERS)[0] for word, call in TABLES["calls"].items()}
_CHECKS = [word for word in _MENU if word.startswith(("check", "run", "can"))]
_KEPT, _DROPPED = (TABLES["brief"][name].split() for name in ("kept", "dropped"))


class _Episode:
    def __init__(self, task_id: str, policy: str, answers: str, actions: str) -> None:
        self._world, self._brief, self._actions = RunningTask(task_id), answers == "brief", actions
        ticket, prompt = self._world.task.ticket, _system_prompt(policy == "full", actions)
        self._players: dict[str, Any] = {name: Script(name) for name in TABLES["scripts"]}
        self._players["expert"] = Expert(ticket)
        self.told = {"observation": self._shown(ticket), "system_prompt": prompt, "instruction": ticket}
        if actions == "native":
            self.told["tools"] = [{"type": "function", "function": tool} for tool in TOOLS]

    def step(self, action: str) -> dict[str, Any]:
        try:
            calls = self._read(action)
        except (ValueError, RecursionError) as error:
            return {"observation": f"Error: {str(error)[:200]}", "malformed": True}
        if "done" in dict(calls):  # tau2 drops the others, too
            return {"observation": "done", "malformed": False, **self._world.verdict()}
        results, malformed = [], False
        for name, arguments in calls:
            answer, failed = self._world.call(name, arguments)
            malformed |= failed and bool(re.match("Error: (Tool |.* argument)", answer))
            word = next((word for word, call in _MENU.items() if call == (name, arguments)), name)
            for player in self._players.values():
                player.see(word, answer)
            results.append(self._shown(answer))
        apart = {"tool_results": results} if self._actions == "native" else {}
        return {"observation": "\n".join(results), "malformed": malformed, **apart}

    def action(self, player: str, draw: float = 0.0) -> str:
        word = _CHECKS[int(draw * len(_CHECKS))] if player == "random" else self._players[player].next()
        name, arguments = _MENU[word]
        if self._actions == "native":
            function = {"name": name, "arguments": arguments}
            return json.dumps({"tool_calls": [{"type": "function", "function": function}]})
        return _call_text(name, arguments) if self._actions == "calls" else word

    def messages(self) -> list[Any]:
        return [message.model_dump() for message in self._world.messages]

    def _read(self, action: str) -> list[Call]:
        if self._actions == "native":
            return read_message(action)
        if self._actions == "calls":
            return read_text(action, _PARAMETERS)
        if action.strip() not in _MENU:
            raise ValueError("reply with one word of the menu")
        return [_MENU[action.strip()]]

    def _shown(self, text: str) -> str:
        if not self._brief:
            return text
        if text[:1] in ("[", "{"):
            read = json.loads(text)
            fields = (field for record in (read if isinstance(read, list) else [read]) for field in record.items())
            text = " ".join(f"{name} {value}" for name, value in fields if name in _KEPT)
        words = re.sub(r"[^a-z0-9.\-]+", " ", re.sub(TABLES["brief"]["aside"], "", text).lower()).split()
        return " ".join(word for word in words if word not in _DROPPED)


def _call_text(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(map(json.dumps, arguments.values()))})"


def _system_prompt(full: bool, actions: str) -> str:
    reply = "word of the menu" if actions == "menu" else "call of a tool"
    rules = f"You are a telecom agent with access to the customer's phone. Reply with one {reply}. done ends the task."
    lines = {
        "menu": [f"{word}: {_call_text(*call)}" for word, call in _MENU.items()],
        "calls": [f"{t['name']}({', '.join(_PARAMETERS[t['name']])}): {t['description']}" for t in TOOLS],
        "native": [],
    }
    return "\n".join([rules, *lines[actions], OFFICIAL.get_policy()]) if full else rules


_episodes: dict[int, _Episode] = {}


def handle(method: str, params: dict[str, Any]) -> Any:
    session = params.pop("session")
    if method == "start":
        _episodes[session] = _Episode(**params)
        return _episodes[session].told
    if method == "finish":
        return _episodes.pop(session, None) and None
    return getattr(_episodes[session], method)(**params)
