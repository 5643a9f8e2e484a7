"""Finds the code in a model's message, in time linear in the message's length.

It does not repair code. Code that is not Python fails in the engine, and the agent sees the error.
"""

import re

from eh_gym.replies import split_reply

_LONGEST_MESSAGE = 1_000_000  # characters
_LONGEST_CODE = 200_000  # characters

# A fence matches to the end of its line, so that the search never backtracks.
_FENCE = re.compile(r"^(?P<indent>[ \t]*)```[ \t]*(?P<kind>\w*).*", re.MULTILINE)
_PYTHON = ("python", "python3", "py", "")


def code_of(message: str) -> str:
    r"""The first Python block of a message, or all of it if it has none.

    Thoughts are left out first (`eh_gym.split_reply`). A block without an end reaches to the end of the message. The
    lines lose the fence's indentation.

    >>> code_of("I look it up.\n```python\nprint(1)\n```\nThen I go on.")
    'print(1)\n'
    >>> code_of("print(2)")
    'print(2)'
    >>> code_of("<think>```python\nprint(3)\n``` no</think>print(4)")
    'print(4)'
    >>> code_of("1. I look.\n   ```python\n   for x in [5]:\n       print(x)\n   ```")
    'for x in [5]:\n    print(x)\n'
    """
    message = split_reply(message)[1]
    fences = _FENCE.finditer(message)
    for opening in fences:
        closing = next(fences, None)
        if opening["kind"].lower() in _PYTHON and opening.end() < len(message):
            code = message[opening.end() + 1 : closing.start() if closing else len(message)]
            return _dedented(code, len(opening["indent"])) if opening["indent"] else code
    return message


def refusal_of(message: str) -> str:
    if len(message) > _LONGEST_MESSAGE:
        return f"Not run: a message of {len(message):,} characters; at most {_LONGEST_MESSAGE:,} are allowed."
    code = code_of(message)
    if len(code) > _LONGEST_CODE:
        return f"Not run: {len(code):,} characters of code; at most {_LONGEST_CODE:,} are allowed."
    return ""


def _dedented(code: str, most: int) -> str:
    return re.sub(rf"^[ \t]{{1,{most}}}", "", code, flags=re.MULTILINE)
