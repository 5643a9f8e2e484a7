"""The worker's side of EH-Tau2. It runs in tau2's virtualenv and holds many episodes at once."""

from __future__ import annotations

from typing import Any

from .calls import LONGEST, MOST_CALLS, Call, read_message, read_text, write_message, write_text
from .expert import SCRIPTS, Expert, Script
from .menu import brief, menu, word_of
from .world import World, policy, signatures, tools

_RULES = """\
You are a telecom agent with access to the customer's phone. Solve the ticket. Reply with one call of a tool, and with \
{done} when the ticket is solved or cannot be solved."""


class _Episode:
    def __init__(self, task_id: str, answers: str, actions: str) -> None:
        self._world = World(task_id)
        self._brief, self._actions = answers == "brief", actions
        self.ticket = self._world.task.ticket
        self._players = {"expert": Expert(self.ticket), **{name: Script(name) for name in SCRIPTS}}

    def shown(self, text: str) -> str:
        return brief(text) if self._brief else text

    def step(self, action: str) -> dict[str, Any]:
        result: dict[str, Any] = {"results": [], "called": True, "malformed": False, "done": False, "success": False}
        try:
            calls = self._read(action)
        except (ValueError, RecursionError) as error:
            return {**result, "results": [f"Error: {str(error)[:200]}"], "called": False, "malformed": True}
        for number, call in enumerate(calls):
            if result["done"] or number == MOST_CALLS or isinstance(call, Exception):
                late = "this call comes after done" if result["done"] else f"a message has {MOST_CALLS} calls at most"
                result["results"].append(f"Error: {str(call)[:200] if isinstance(call, Exception) else late}")
                result["malformed"] = True
                if number >= MOST_CALLS:
                    result["results"] += result["results"][-1:] * (len(calls) - number - 1)
                    break
            elif call[0] == "done":
                result["done"] = True
                result["results"].append("done")
            else:
                text, malformed = self._call(*call)
                result["results"].append(text)
                result["malformed"] = result["malformed"] or malformed
        if result["done"]:
            try:
                result["success"] = self._world.verdict()
            except Exception as error:
                result["error"] = f"tau2's replay raised {type(error).__name__}: {error}"[:2000]
        return result

    def _read(self, action: str) -> list[Any]:
        if len(action) > LONGEST:
            raise ValueError(f"a message has {LONGEST} characters at most")
        if self._actions == "native":
            return read_message(action)
        if self._actions == "calls":
            return [read_text(action, signatures())]
        word = action.strip()
        if word not in menu():
            raise ValueError("write one word of the menu")
        return [menu()[word]]

    def _call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        text, failed = self._world.call(name, arguments)
        malformed = failed and not _fits(name, arguments)
        if not malformed:
            for player in self._players.values():
                player.see(name, arguments, text)
        return self.shown(text), malformed

    def script(self, name: str) -> str:
        return _written(self._actions, self._players[name].next())


def _fits(name: str, arguments: dict[str, Any]) -> bool:
    try:
        signatures()[name].bind(**arguments)
    except (KeyError, TypeError):
        return False
    return True


def _written(actions: str, call: Call) -> str:
    return {"native": write_message, "calls": write_text, "menu": word_of}[actions](*call)


def _system_prompt(full: bool, actions: str) -> str:
    lines = [_RULES.format(done="done" if actions == "menu" else "done()")]
    if full and actions == "calls":
        documents = {tool["function"]["name"]: tool["function"]["description"] for tool in tools()}
        lines += [f"{name}{signatures()[name]}: {text}" for name, text in documents.items()]
    if full and actions == "menu":
        lines += [f"{word}: {write_text(*call)}" for word, call in menu().items()]
    return "\n".join([*lines, policy()] if full else lines)


_episodes: dict[int, _Episode] = {}


def handle(method: str, params: dict[str, Any]) -> Any:
    """Answers one call of the environment.

    ``start(session, task_id, answers, actions, policy)`` -> observation, instruction, system_prompt, tools;
    ``step(session, action)`` -> results, malformed, done, success, error if the replay raised; ``script(session,
    name)`` -> an action; ``reads(actions)`` -> harmless actions; ``finish(session)``.
    """
    session = params["session"]
    if method == "step":
        return _episodes[session].step(params["action"])
    if method == "script":
        return _episodes[session].script(params["name"])
    if method == "start":
        episode = _episodes[session] = _Episode(params["task_id"], params["answers"], params["actions"])
        return {
            "observation": episode.shown(episode.ticket),
            "instruction": episode.ticket,
            "system_prompt": _system_prompt(params["policy"] == "full", params["actions"]),
            "tools": tools() if params["actions"] == "native" else None,
        }
    if method == "reads":
        names = [name for name, signature in signatures().items() if not signature.parameters]
        return [_written(params["actions"], (name, {})) for name in names if name.startswith(("check", "run", "can"))]
    assert method == "finish", method
    _episodes.pop(session, None)
    return None
