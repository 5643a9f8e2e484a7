"""Hides the keys of servers in what is shown and logged."""

import os
import re

_NAMED = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$", re.I)
_FORM = re.compile(r"(sk|pk|rk|gsk|hf|xai|r8|AIza)[-_]?[\w-]{16,}")
_SHORTEST = 8  # a shorter value of such a variable is none, such as "any" or "true"
_given: set[str] = set()


def hide_key(key: str) -> None:
    """Hides a key from now on, whatever its variable is called."""
    _given.add(key)


def without_keys(text: str) -> str:
    """Returns a text in which KEY stands for the given keys, and for the environment's variables that are keys by
    their name or form.
    """
    named = {
        value
        for name, value in os.environ.items()
        if (_NAMED.search(name) and len(value) >= _SHORTEST) or _FORM.fullmatch(value)
    }
    for key in sorted(named | _given, key=len, reverse=True):
        text = text.replace(key, "KEY")
    return text
