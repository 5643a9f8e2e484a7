"""Carries out calls as bfcl-eval does, but without eval(): docs/bfcl.md, "Where we differ from upstream"."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from .calls import Call, Methods, PlainCall, combined
from .limits import LONGEST_RESULTS, TOO_LONG, refuse_long

_MATH_CAP = 10_000  # for MathAPI's exponents, precisions and decimal places; the ground truth has 10 at most
_POWER_CAP = 200_000  # bits of an integer power
_BLOCKED = {"kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"}
_BEFORE_BRACKET = re.compile(r"\b([a-zA-Z_]\w*)\s*(?=\()")


def execute(call: Call, methods: Methods, room: int = LONGEST_RESULTS, *, nested: bool = True) -> str:
    """Carries out one call and returns its result in bfcl-eval's words. An error is a result too.

    A result of more than `room` characters is an error. `nested` says whether a call of the episode so far may have had
    a call as an argument.

    Raises:
        MemoryError: The episode must end, so that its memory is free for the others.
    """
    try:
        if isinstance(call, PlainCall):
            _refuse_blocked(call.name)
            result = _invoke(call.name, methods, [], dict(call.arguments))
        else:
            node, instance = _admitted(call, methods)
            result = _value(node, methods, instance)
        if nested:
            refuse_long(result, room)
        text = _result_text(result)
        if len(text) > room:
            raise ValueError(TOO_LONG)
        return text
    except MemoryError:
        raise
    except Exception as error:
        text = f"Error during execution: {error}"
        return text if len(text) <= room else f"Error during execution: {TOO_LONG}"


def _result_text(result: Any) -> str:
    with contextlib.suppress(Exception):  # as upstream
        if type(result) is dict:
            return json.dumps(result)
    return str(result)


def _admitted(source: str, methods: Methods) -> tuple[ast.expr, str]:
    """Parses a call's text as upstream does. Returns it, and the name of the instance that its methods belong to.

    It need not be a call: the name ``send-message`` makes it a subtraction. Upstream replaces every ``name(`` by
    ``instance.name(`` with a regular expression, also in a text argument.
    """
    used = re.findall("_inst_*", unicodedata.normalize("NFKC", source))  # which is how Python reads names
    instance = max(used, key=len) + "_" if used else "_inst"
    source = _BEFORE_BRACKET.sub(lambda match: f"{instance}." * (match[1] in methods) + match[1], source)
    head = source.split("(")[0]
    _refuse_blocked(head.split(".")[1] if "." in head else head)
    tree = ast.parse(source.lstrip(" \t"), "<string>", "eval")  # eval() strips these characters too
    compile(tree, "<string>", "eval")  # it refuses more, such as a keyword that is given twice
    return tree.body, instance


def _refuse_blocked(name: str) -> None:
    if name in _BLOCKED:
        raise PermissionError(f"Function call {name} is not allowed.")


def _run(node: ast.Call, methods: Methods, instance: str) -> Any:
    function = node.func
    if not (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == instance
    ):
        called = _value(function, methods, instance)  # a name is an error, and a call is carried out
        raise TypeError(f"'{type(called).__name__}' object is not callable")
    positional = [_value(argument, methods, instance) for argument in node.args]
    keywords: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** is not supported")
        keywords[keyword.arg] = _value(keyword.value, methods, instance)
    return _invoke(function.attr, methods, positional, keywords)


def _invoke(name: str, methods: Methods, positional: list[Any], keywords: dict[str, Any]) -> Any:
    if name not in methods:
        raise NameError(f"name '{name}' is not defined")
    method = methods[name]
    _cap_mathematics(name, method, positional, keywords)
    # Pass a new list for a list default: upstream's post_tweet shares one list between all episodes of the process.
    for place, parameter, default in _list_defaults(getattr(method, "__func__", method)):
        if parameter not in keywords and place > len(positional):
            keywords[parameter] = list(default)
    return method(*positional, **keywords)


@functools.cache
def _list_defaults(function: Callable[..., Any]) -> list[tuple[int, str, list[Any]]]:
    """Place (self counts), name and original default of each parameter whose default is a list."""
    parameters = enumerate(inspect.signature(function).parameters.values())
    return [(i, p.name, list(p.default)) for i, p in parameters if isinstance(p.default, list)]


def _value(node: ast.expr, methods: Methods, instance: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Call):
        result = _run(node, methods, instance)
        refuse_long(result)  # else arguments could grow without end: each may hold the last one twice
        return result
    if isinstance(node, ast.List):
        return [_value(e, methods, instance) for e in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(e, methods, instance) for e in node.elts)
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise ValueError("** is not supported")
        pairs = zip(node.keys, node.values, strict=True)
        return {_value(k, methods, instance): _value(v, methods, instance) for k, v in pairs if k is not None}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, methods, instance)
        return -value if isinstance(node.op, ast.USub) else +value
    if isinstance(node, ast.BinOp):
        return combined(node.op, *(_value(side, methods, instance) for side in (node.left, node.right)))
    if isinstance(node, ast.Name):
        raise NameError(f"name '{node.id}' is not defined")
    if isinstance(node, ast.Attribute):  # of a name, which is an error, or of a result
        owner = type(_value(node.value, methods, instance)).__name__
        raise AttributeError(f"'{owner}' object has no attribute '{node.attr}'")
    raise ValueError(f"unsupported argument: {type(node).__name__}")


def _cap_mathematics(name: str, method: Callable[..., Any], positional: list[Any], keywords: dict[str, Any]) -> None:
    if name not in ("power", "logarithm", "square_root", "round_number"):
        return
    try:
        given = inspect.signature(method).bind(*positional, **keywords).arguments
    except TypeError:
        return  # the call itself will raise the error
    for argument in ("precision", "exponent", "decimal_places"):
        value = given.get(argument, 0)
        if argument == "precision" and isinstance(value, str | bytes):
            with contextlib.suppress(ValueError):  # which the call itself will raise
                value = int(value)  # as mpmath does
        if isinstance(value, int | float) and abs(value) > _MATH_CAP:
            raise ValueError(f"{argument} must be at most {_MATH_CAP}")
    base, exponent = given.get("base"), given.get("exponent")
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _POWER_CAP:
        raise ValueError(f"the result must have at most {_POWER_CAP} bits")
