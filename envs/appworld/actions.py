"""Finds the code in a model's message.

It repairs nothing. Code that is not Python fails in the engine, and the agent sees the error.
"""

from __future__ import annotations

import re

__all__ = ["code_of"]

_FENCE = re.compile(r"^[ \t]*```[ \t]*(?P<kind>\w*)[^\n]*\n(?P<code>.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = ("python", "python3", "py", "")


def code_of(message: str) -> str:
    r"""The first Python block of a message, or all of it if it has none.

    The text before the last ``</think>`` is ignored. A block that the model did not close goes on to the end of the message.

    >>> code_of("I look it up.\n```python\nprint(1)\n```\nThen I go on.")
    'print(1)\n'
    >>> code_of("print(2)")
    'print(2)'
    >>> code_of("<think>```python\nprint(3)\n``` no</think>print(4)")
    'print(4)'
    """
    message = message.rpartition("</think>")[2]
    for block in _FENCE.finditer(message):
        if block["kind"].lower() in _PYTHON:
            return block["code"]
    return message
