"""From model text to calls, and from calls to results, as bfcl-eval does it but without eval().

bfcl-eval evaluates model text as Python: imports, open() and the rest all run. Here a call is admitted only by its bare
name in the table of the simulators' methods, with literals and further such calls as arguments; that changes none of the
5,887 ground-truth calls. The quirks that decide verdicts are kept and named where they are.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["FORMATS", "LONGEST", "DecodeError", "decode_hermes", "decode_python", "execute", "to_hermes", "to_python"]

Methods = dict[str, Callable[..., Any]]

_ARITHMETIC_DEPTH = 20
_MATH_CAP = (
    10_000  # MathAPI's exponents, precisions and places; ground truth has 10 at most, and 10**8 would hang the process
)
_POWER_CAP = 200_000  # bits of an integer power
_REPEAT_CAP = 10_000  # characters of a repeated text
LONGEST = 200_000  # characters of one message; beyond, it is no call
_BLOCKED = {"kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"}
_BEFORE_BRACKET = re.compile(r"\b([a-zA-Z_]\w*)\s*(?=\()")
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
    """The text is no list of calls; officially this ends the user's turn."""


def decode_python(text: str) -> list[str]:
    r"""``[f(a=1), g()]`` as a list of call texts.

    Official quirks: backticks, newlines and blanks are stripped, missing brackets added, positional arguments silently
    dropped, and a unary plus negates.

    >>> decode_python("[f(a=1, b=[g(c='x')]), h(3)]")
    ["f(a=1, b=[{'g': {'c': 'x'}}])", 'h()']
    """
    if len(text) > LONGEST:
        raise DecodeError("too long")
    source = text.strip("`\n ")
    source = source if source.startswith("[") else "[" + source
    source = source if source.endswith("]") else source + "]"
    try:
        body = ast.parse(source.strip().strip("'"), mode="eval").body
        nodes = [body] if isinstance(body, ast.Call) else body.elts  # type: ignore[attr-defined]
        return [_call_text(_resolve_call(node)) for node in nodes]
    except Exception as error:  # upstream too takes any exception here for "no call"
        raise DecodeError(str(error)) from error


def decode_hermes(text: str) -> list[str]:
    """``<tool_call>{json}</tool_call>`` blocks as a list of call texts.

    Official quirks: text up to ``</think>`` is cut first, and a block that is not JSON is dropped.
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
        return [_call_with({call["name"]: call["arguments"]}) for call in calls]
    except Exception as error:
        raise DecodeError(str(error)) from error


FORMATS: dict[str, Callable[[str], list[str]]] = {"python": decode_python, "hermes": decode_hermes}
"""The action formats by name."""


def execute(source: str, methods: Methods) -> str:
    """Carries out one call and returns its result as bfcl-eval words it; errors are results too."""
    try:
        result = _run(_admitted(source, methods), methods)
    except (Exception, RecursionError) as error:
        return f"Error during execution: {error}"
    if type(result) is str:
        return result
    if type(result) is dict:
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def to_python(calls: list[str], methods: Methods) -> str:
    """Ground-truth calls as a message in the python format, with every argument by keyword."""
    return "[" + ", ".join(ast.unparse(_by_keyword(call, methods)) for call in calls) + "]"


def to_hermes(calls: list[str], methods: Methods) -> str:
    """Ground-truth calls as a message in the hermes format."""
    blocks = []
    for call in calls:
        node = _by_keyword(call, methods)
        arguments = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
        body = json.dumps({"name": ast.unparse(node.func), "arguments": arguments})
        blocks.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(blocks)


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
        return -node.operand.value  # type: ignore[attr-defined]  # as upstream: +5 and ~5 become -5 too
    if isinstance(node, ast.List):
        return [_resolve(e) for e in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_resolve(e) for e in node.elts)
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise DecodeError("unsupported: **")
        return {_resolve(k): _resolve(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    if isinstance(node, ast.BinOp):
        return _arithmetic(node)
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
    if all(
        isinstance(v, dict) for v in value.values()
    ):  # as upstream: a dict of dicts is taken for a call, and {} fails
        if not value:
            raise DecodeError("an empty dict is no argument")
        name = next(iter(value))
        return f"{name}({', '.join(f'{k}={_value_text(v)}' for k, v in value[name].items())})"
    return "{" + ", ".join(f"'{k}': {_value_text(v)}" for k, v in value.items()) + "}"


def _tool_calls(text: str) -> Iterator[str]:
    r"""What ``re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.DOTALL)`` finds, in linear time.

    The expression takes seconds for a text of opening tags alone.
    """
    opening, closing = "<tool_call>\n", "\n</tool_call>"
    at = text.find(opening)
    while at >= 0:
        begin = at + len(opening)
        end = text.find(closing, begin)
        if end < 0:
            return
        yield text[begin:end]
        at = text.find(opening, end + len(closing))


def _call_with(call: dict[Any, Any]) -> str:
    [(name, arguments)] = call.items()  # a dict, as upstream: a name that cannot be a key is no call
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return f"{name}({','.join(f'{k}={v!r}' for k, v in arguments.items())})"


def _arithmetic(node: ast.expr, depth: int = 0) -> Any:
    """Constant arithmetic, bounded: upstream evaluates it with eval()."""
    if depth > _ARITHMETIC_DEPTH:
        raise DecodeError("arithmetic nested too deeply")
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | complex):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _arithmetic(node.operand, depth + 1)
        return -value if isinstance(node.op, ast.USub) else +value
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        raise DecodeError("not constant arithmetic")
    a, b = _arithmetic(node.left, depth + 1), _arithmetic(node.right, depth + 1)
    if isinstance(node.op, ast.Pow) and (isinstance(a, str) or isinstance(b, str) or abs(b) > 64 or abs(a) > 1e6):
        raise DecodeError("power too large")
    if isinstance(node.op, ast.Mult) and (isinstance(a, str) or isinstance(b, str)):
        text, times = (a, b) if isinstance(a, str) else (b, a)
        if isinstance(times, int) and len(text) * times > _REPEAT_CAP:
            raise DecodeError("repeated text too long")
    if isinstance(node.op, ast.Mod) and isinstance(a, str):
        raise DecodeError("formatted text")  # '%999999999d' % 1 is a gigabyte
    return _OPERATORS[type(node.op)](a, b)


# ---- execution ------------------------------------------------------------------------------------------------------


def _admitted(source: str, methods: Methods) -> ast.Call:
    """Parses a call text with upstream's rewriting, which also reaches into text arguments.

    Upstream replaces every ``name(`` by ``instance.name(`` with a regular expression. In a text argument that drops blanks
    before a bracket and puts an instance's name before a method's.
    """
    source = _BEFORE_BRACKET.sub(lambda match: match.group(1), source)
    head = source.split("(")[0]
    head = head.split(".")[1] if "." in head else head
    if head in _BLOCKED and head not in methods:
        raise PermissionError(f"Function call {head} is not allowed.")
    node = ast.parse(source.lstrip(" \t"), "<string>", "eval").body  # eval() strips the same
    if not isinstance(node, ast.Call):
        raise ValueError("not a function call")
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and "(" in part.value:
            part.value = _BEFORE_BRACKET.sub(
                lambda match: ("_inst." if match.group(1) in methods else "") + match.group(1), part.value
            )
    return node


def _run(node: ast.Call, methods: Methods) -> Any:
    if not isinstance(node.func, ast.Name) or node.func.id not in methods:
        inner = node.func
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        raise NameError(f"name '{getattr(inner, 'id', '?')}' is not defined")
    method = methods[node.func.id]
    positional = [_value(argument, methods) for argument in node.args]
    keywords: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** is not supported")
        keywords[keyword.arg] = _value(keyword.value, methods)
    _cap_mathematics(node.func.id, method, positional, keywords)
    # A fresh list for a mutable default: upstream's post_tweet shares one between all episodes of the process.
    for place, name, default in _list_defaults(getattr(method, "__func__", method)):
        if name not in keywords and place > len(positional):
            keywords[name] = list(default)
    return method(*positional, **keywords)


@functools.cache
def _list_defaults(function: Callable[..., Any]) -> list[tuple[int, str, list[Any]]]:
    """Place (self counted), name and default of each parameter whose default is a list, as the class was written."""
    parameters = enumerate(inspect.signature(function).parameters.values())
    return [(i, p.name, list(p.default)) for i, p in parameters if isinstance(p.default, list)]


def _value(node: ast.expr, methods: Methods) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Call):
        return _run(node, methods)
    if isinstance(node, ast.List):
        return [_value(e, methods) for e in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(e, methods) for e in node.elts)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_value(k, methods): _value(v, methods) for k, v in pairs if k is not None}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, methods)
        return -value if isinstance(node.op, ast.USub) else +value
    if isinstance(node, ast.BinOp):
        return _arithmetic(node)
    if isinstance(node, ast.Name):
        raise NameError(f"name '{node.id}' is not defined")
    raise ValueError(f"unsupported argument: {type(node).__name__}")


def _cap_mathematics(name: str, method: Callable[..., Any], positional: list[Any], keywords: dict[str, Any]) -> None:
    if name not in ("power", "logarithm", "square_root", "round_number"):
        return
    try:
        given = inspect.signature(method).bind(*positional, **keywords).arguments
    except TypeError:
        return  # the call itself will say what is wrong
    for argument in ("precision", "exponent", "decimal_places"):
        value = given.get(argument, 0)
        if isinstance(value, int | float) and abs(value) > _MATH_CAP:
            raise ValueError(f"{argument} must be at most {_MATH_CAP}")
    base, exponent = given.get("base"), given.get("exponent")
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _POWER_CAP:
        raise ValueError(f"the result must have at most {_POWER_CAP} bits")


def _by_keyword(call: str, methods: Methods) -> ast.Call:
    node = ast.parse(call, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"not a ground-truth call: {call}")
    names = list(inspect.signature(methods[node.func.id]).parameters)
    given = [ast.keyword(arg=name, value=value) for name, value in zip(names, node.args, strict=False)]
    return ast.Call(func=node.func, args=[], keywords=given + node.keywords)
