"""Half surrogate pairs, which Python's texts may hold and neither UTF-8 nor a tokenizer can."""

from __future__ import annotations

__all__ = ["escaped"]


def escaped(text: str) -> str:
    r"""The text with half surrogate pairs as their escapes. An agent's code can print such halves.

    >>> escaped("a" + chr(0xD83D)), escaped("a\U0001f600") == "a\U0001f600"
    ('a\\ud83d', True)
    """
    return text.encode("utf-8", "backslashreplace").decode()
