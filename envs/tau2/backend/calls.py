"""Reads an agent's calls, as text or as data."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

LONGEST = 50_000  # characters of a message
_MOST_CALLS = 10
_DEEPEST = 5  # nested lists and objects; tau2 copies them by recursion
_BEGIN = re.compile(r"(?:([A-Za-z_]\w*)\s*=\s*)?(?:'([^'\\]*)'|(True|False|None)\b)?")
_PYTHON = {"True": True, "False": False, "None": None}

Call = tuple[str, dict[str, Any]]


def read_text(text: str, parameters: Mapping[str, Sequence[str]]) -> list[Call]:
    """One call as text, with values as in JSON, or simple ones of Python. Raises ValueError or RecursionError."""
    whole = re.fullmatch(r"(\w+)\s*\((.*)\)", text.strip(), re.DOTALL)
    if not whole:
        raise ValueError("reply with one call, such as check_status_bar()")
    name, rest, at = whole[1], whole[2].strip(), 0
    arguments: dict[str, Any] = {}
    free = list(parameters.get(name, ()))
    while at < len(rest):
        begin: Any = _BEGIN.match(rest, at)
        key, at = begin[1] or (free.pop(0) if free else ""), begin.end()
        if not key or key in arguments:
            raise ValueError("there are too many arguments")
        if begin[2] is not None:
            arguments[key] = begin[2]
        elif begin[3]:
            arguments[key] = _PYTHON[begin[3]]
        else:
            arguments[key], at = json.JSONDecoder().raw_decode(rest, at)
        comma = re.compile(r"\s*(,\s*|$)").match(rest, at)
        if not comma:
            raise ValueError("arguments are separated by commas")
        at = comma.end()
    return [_checked(name, arguments)]


def read_message(text: str) -> list[Call]:
    with suppress(TypeError, KeyError, json.JSONDecodeError):
        functions = [call["function"] for call in json.loads(text)["tool_calls"]]
        read = [(f["name"], f["arguments"]) for f in functions]
        if 1 <= len(read) <= _MOST_CALLS:
            return [_checked(name, json.loads(given) if isinstance(given, str) else given) for name, given in read]
    raise ValueError(f"reply with 1 to {_MOST_CALLS} calls of tools")


def _checked(name: Any, arguments: Any) -> Call:
    if not isinstance(name, str) or not isinstance(arguments, dict) or _depth(arguments) > _DEEPEST:
        raise ValueError("a call has a name and flat arguments")
    json.dumps([name, arguments], allow_nan=False, ensure_ascii=False).encode()  # refuses lone surrogates, too
    return name, arguments


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0) if isinstance(value, (dict, list)) else 0
