"""Decodes a model's text into calls as bfcl-eval does, but without eval(). Also writes ground-truth calls as text.

bfcl-eval turns each call into source text and evaluates it. To save time, only a call that is nested, or has a bracket
in a text argument, becomes source text here. Quirks of bfcl-eval that decide verdicts are kept.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import operator
from collections.abc import Callable, Iterator
from keyword import iskeyword
from typing import Any, NamedTuple

Methods = dict[str, Callable[..., Any]]

_ARITHMETIC_DEPTH = 20
_REPEAT_CAP = 10_000  # characters of a repeated text
CPU_S = 5.0  # processor time of one message; the ground truth's messages take milliseconds
LONGEST = 200_000  # characters of one message; a longer one has no call
LONGEST_PYTHON = 16_000  # the same for the python format, whose parser is slow; ground-truth turns have up to 6,910
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class DecodeError(ValueError):
    """The text is not a list of calls. By the official rules, this ends the user's turn."""


class PlainCall(NamedTuple):
    """A call whose source text would evaluate to exactly this call."""

    name: str
    arguments: dict[str, Any]


Call = str | PlainCall


def decode_python(text: str) -> list[Call]:
    r"""``[f(a=1), g()]`` as a list of calls.

    Official quirks: backticks, newlines and blanks are stripped, missing brackets are added, positional arguments are
    silently dropped, and a unary plus negates.

    >>> decode_python("[f(a=1, b=g(c='x')), h(3)]")
    ["f(a=1, b=g(c='x'))", PlainCall(name='h', arguments={})]
    """
    if len(text) > LONGEST_PYTHON:
        raise DecodeError("too long")
    source = text.strip("`\n ")
    source = source if source.startswith("[") else "[" + source
    source = source if source.endswith("]") else source + "]"
    try:
        body = ast.parse(source.strip().strip("'"), mode="eval").body
        nodes = [body] if isinstance(body, ast.Call) else body.elts  # type: ignore[attr-defined]
        return [_call(_resolve_call(node), _call_text) for node in nodes]
    except Exception as error:  # as upstream: any exception here means "no call"
        raise DecodeError(str(error)) from error


def decode_hermes(text: str) -> list[Call]:
    """``<tool_call>{json}</tool_call>`` blocks as a list of calls.

    Official quirks: the text up to ``</think>`` is cut off first, and a block that is not JSON is dropped.
    """
    if len(text) > LONGEST:
        raise DecodeError("too long")
    calls = []
    for block in _tool_calls(text.split("</think>")[-1]):
        try:
            calls.append(json.loads(block))
        except (ValueError, RecursionError):
            continue
    try:
        return [_call(_hermes_call(call), _hermes_text) for call in calls]
    except Exception as error:
        raise DecodeError(str(error)) from error


def decode_native(text: str) -> list[Call]:
    r"""The ``tool_calls`` of an assistant's message as JSON, in OpenAI's form; any other text has no call.

    As upstream, arguments that are no JSON object make the whole message undecodable.

    >>> decode_native('{"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}')
    [PlainCall(name='f', arguments={'a': 1})]
    """
    if len(text) > LONGEST:
        raise DecodeError("too long")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return []  # words
    try:
        calls = (message.get("tool_calls") or []) if isinstance(message, dict) else []
        return [_call(_hermes_call(call["function"]), _hermes_text) for call in calls]
    except Exception as error:
        raise DecodeError(str(error)) from error


FORMATS: dict[str, Callable[[str], list[Call]]] = {
    "python": decode_python,
    "hermes": decode_hermes,
    "native": decode_native,
}
"""The action formats by name."""


def source_text(call: Call) -> str:
    """A decoded call in bfcl-eval's words.

    >>> source_text(PlainCall("cd", {"folder": "temp"}))
    "cd(folder='temp')"
    """
    return _call_text({call.name: call.arguments}) if isinstance(call, PlainCall) else call  # type: ignore[dict-item]


def to_python(calls: list[str], methods: Methods) -> str:
    return "[" + ", ".join(ast.unparse(_by_keyword(call, methods)) for call in calls) + "]"


def to_hermes(calls: list[str], methods: Methods) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in _as_json(calls, methods))


def to_native(calls: list[str], methods: Methods) -> str:
    tool_calls = [{"type": "function", "function": call} for call in _as_json(calls, methods)]
    return json.dumps({"role": "assistant", "content": "", "tool_calls": tool_calls})


# ---- decoding -------------------------------------------------------------------------------------------------------


def _resolve_call(node: ast.expr) -> dict[str, dict[str | None, Any]]:
    if not isinstance(node, ast.Call):
        raise DecodeError("not a call")
    parts: list[str] = []
    function = node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        parts.append(function.id)
    return {".".join(reversed(parts)): {k.arg: _resolve(k.value) for k in node.keywords}}


def _resolve(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return "..." if node.value is Ellipsis else node.value
    if isinstance(node, ast.UnaryOp):
        return -node.operand.value  # type: ignore[attr-defined]  # as upstream: +5 and ~5 also become -5
    if isinstance(node, ast.List):
        return [_resolve(e) for e in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_resolve(e) for e in node.elts)
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise DecodeError("unsupported: **")
        return {_resolve(k): _resolve(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    if isinstance(node, ast.BinOp):
        return arithmetic(node)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call):
        return _resolve_call(node) if node.keywords else ast.unparse(node)
    if isinstance(node, ast.Subscript):
        return f"{ast.unparse(node.value)}[{ast.unparse(node.slice)}]"
    raise DecodeError(f"unsupported: {type(node).__name__}")


def _call_text(call: dict[str, dict[str | None, Any]]) -> str:
    [(name, arguments)] = call.items()
    return f"{name}({', '.join(f'{k}={_value_text(v)}' for k, v in arguments.items())})"


def _value_text(value: Any) -> str:
    if not isinstance(value, dict):
        return repr(value)
    if all(isinstance(v, dict) for v in value.values()):  # as upstream: a dict of dicts counts as a call; {} fails
        if not value:
            raise DecodeError("an empty dict is no argument")
        name = next(iter(value))
        return f"{name}({', '.join(f'{k}={_value_text(v)}' for k, v in value[name].items())})"
    return "{" + ", ".join(f"'{k}': {_value_text(v)}" for k, v in value.items()) + "}"


def _tool_calls(text: str) -> Iterator[str]:
    r"""As ``re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.DOTALL)``, but in linear time."""
    opening, closing = "<tool_call>\n", "\n</tool_call>"
    at = text.find(opening)
    while at >= 0:
        begin = at + len(opening)
        end = text.find(closing, begin)
        if end < 0:
            return
        yield text[begin:end]
        at = text.find(opening, end + len(closing))


def _hermes_call(block: Any) -> dict[Any, Any]:
    name, arguments = block["name"], block["arguments"]
    return {name: json.loads(arguments) if isinstance(arguments, str) else arguments}  # an unhashable name fails


def _hermes_text(call: dict[Any, Any]) -> str:
    [(name, arguments)] = call.items()
    return f"{name}({','.join(f'{k}={v!r}' for k, v in arguments.items())})"


def _call(call: dict[Any, Any], text_of: Callable[[dict[Any, Any]], str]) -> Call:
    [(name, arguments)] = call.items()
    names = [name, *arguments]
    if all(map(_is_plain_name, names)) and all(map(_is_plain, arguments.values())):
        return PlainCall(name, arguments)
    return text_of(call)


def _is_plain_name(name: Any) -> bool:
    return type(name) is str and name.isascii() and name.isidentifier() and not iskeyword(name) and name != "__debug__"


def _is_plain(value: Any) -> bool:
    """Whether ``value``'s source text evaluates to ``value`` again, also after upstream's rewriting of brackets."""
    if isinstance(value, str):
        return "(" not in value
    if isinstance(value, int):  # or bool; Python refuses to write out integers of more than 4,300 digits
        return value.bit_length() < 10_000
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (type(value) is list and all(map(_is_plain, value)))


def arithmetic(node: ast.expr, depth: int = 0) -> Any:
    """Evaluates constant arithmetic within limits. Upstream evaluates it with eval()."""
    if depth > _ARITHMETIC_DEPTH:
        raise DecodeError("arithmetic nested too deeply")
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | complex):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = arithmetic(node.operand, depth + 1)
        return -value if isinstance(node.op, ast.USub) else +value
    if not isinstance(node, ast.BinOp):
        raise DecodeError("not constant arithmetic")
    return combined(node.op, arithmetic(node.left, depth + 1), arithmetic(node.right, depth + 1))


def combined(op: ast.operator, a: Any, b: Any) -> Any:
    constant = all(isinstance(value, int | float | str | complex) for value in (a, b))
    if type(op) not in _OPERATORS or not (constant or isinstance(op, ast.Add | ast.Sub)):
        raise DecodeError("not constant arithmetic")
    if isinstance(op, ast.Pow) and (isinstance(a, str) or isinstance(b, str) or abs(b) > 64 or abs(a) > 1e6):
        raise DecodeError("power too large")
    if isinstance(op, ast.Mult) and (isinstance(a, str) or isinstance(b, str)):
        text, times = (a, b) if isinstance(a, str) else (b, a)
        if isinstance(times, int) and len(text) * times > _REPEAT_CAP:
            raise DecodeError("repeated text too long")
    if isinstance(op, ast.Mod) and isinstance(a, str):
        raise DecodeError("formatted text")  # '%999999999d' % 1 is a gigabyte
    return _OPERATORS[type(op)](a, b)


def _as_json(calls: list[str], methods: Methods) -> Iterator[dict[str, Any]]:
    for call in calls:
        node = _by_keyword(call, methods)
        yield {
            "name": ast.unparse(node.func),
            "arguments": {k.arg: ast.literal_eval(k.value) for k in node.keywords},
        }


def _by_keyword(call: str, methods: Methods) -> ast.Call:
    node = ast.parse(call, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"not a ground-truth call: {call}")
    names = list(inspect.signature(methods[node.func.id]).parameters)
    given = [ast.keyword(arg=name, value=value) for name, value in zip(names, node.args, strict=False)]
    return ast.Call(func=node.func, args=[], keywords=given + node.keywords)
