"""A griffe extension that turns the examples in docstrings into code blocks, wherever they are in the docstring."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?! *$)(?P=indent).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around every run of lines that begins with `>>>`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fences the examples of one object. griffe calls this after it has read the docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    indent = match["indent"]
    return f"{indent}```pycon\n{match[0]}\n{indent}```"
