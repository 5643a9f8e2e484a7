"""Reads an agent's calls, as text or as data, and writes those of scripts."""

from __future__ import annotations

import inspect
import json
import math
import re
from typing import Any

LONGEST = 50_000  # characters of a message
MOST_CALLS = 10  # in a message
_DEEPEST = 5  # lists and objects in each other
Call = tuple[str, dict[str, Any]]
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_QUOTED = re.compile(r"'([^'\\]*)'")
_PYTHON = re.compile(r"(True|False|None)\b")
_CONSTANTS = {"True": True, "False": False, "None": None}


def _refuse(number: str) -> float:
    raise ValueError(f"{number[:20]} is no finite number")


def _finite(number: str) -> float:
    return value if math.isfinite(value := float(number)) else _refuse(number)


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def read_text(text: str, signatures: dict[str, inspect.Signature]) -> Call:
    """The call of ``name(1, key="text")`` or ``{"name": …, "arguments": {…}}``. Values are those of JSON, or simple
    ones of Python.

    Raises:
        ValueError: It is no call.
        RecursionError: It is nested too deeply.
    """
    text = text.strip()
    if text.startswith("{"):
        return _checked(_JSON.decode(text))
    name, _, rest = text.partition("(")
    if not re.fullmatch(r"\w+\s*", name) or not rest.endswith(")"):
        raise ValueError("write one call, such as check_status_bar()")
    name, rest = name.strip(), rest[:-1].strip()
    free, arguments, at = list(signatures[name].parameters) if name in signatures else [], {}, 0
    while at < len(rest):
        if named := _NAMED.match(rest, at):
            key, at = named[1], named.end()
        elif free:
            key, at = free.pop(0), at + len(rest[at:]) - len(rest[at:].lstrip())
        else:
            raise ValueError("there are too many arguments")
        if key in arguments:
            raise ValueError(f"{key} is given twice")
        if found := _QUOTED.match(rest, at):
            arguments[key], at = found[1], found.end()
        elif found := _PYTHON.match(rest, at):
            arguments[key], at = _CONSTANTS[found[1]], found.end()
        else:
            arguments[key], at = _JSON.raw_decode(rest, at)
        comma = re.compile(r"\s*(,\s*|$)").match(rest, at)
        if not comma:
            raise ValueError("arguments are separated by commas")
        at = comma.end()
    return _checked({"name": name, "arguments": arguments})


def read_message(text: str) -> list[Call | ValueError]:
    """The ``tool_calls`` of an assistant's message as JSON; an error for a call that can't be read.

    Raises:
        ValueError: It has no call.
        RecursionError: It is nested too deeply.
    """
    try:
        message = json.loads(text)
    except ValueError:
        message = None
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not calls:
        raise ValueError("reply with a call of a tool")
    return [_of_message(call) for call in calls]


def _of_message(call: Any) -> Call | ValueError:
    try:
        function = call["function"]
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return _checked({"name": function["name"], "arguments": _JSON.decode(text)})
    except (ValueError, TypeError, KeyError) as error:
        return ValueError(f"this is no call ({error})")


def _checked(call: Any) -> Call:
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    parts, depth = [name, arguments], 0
    while parts:
        depth += 1
        if depth > _DEEPEST:
            raise RecursionError("the arguments are nested too deeply")
        for part in parts:
            if isinstance(part, str):
                part.encode()  # a lone surrogate is no text for tau2
        inner = [[*part, *part.values()] if isinstance(part, dict) else part for part in parts]
        parts = [value for part in inner if isinstance(part, list) for value in part]
    return name, arguments


def write_text(name: str, arguments: dict[str, Any]) -> str:
    """A call as text.

    >>> write_text("get_details_by_id", {"id": "L1001"})
    'get_details_by_id("L1001")'
    """
    return f"{name}({', '.join(json.dumps(value) for value in arguments.values())})"


def write_message(name: str, arguments: dict[str, Any]) -> str:
    """A call as the assistant's message."""
    function = {"name": name, "arguments": arguments}
    return json.dumps({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]})
