"""Hides the keys of servers in what is shown and logged."""

import os
import re

_NAMED = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$", re.I)
_FORM = re.compile(r"(sk|pk|rk|gsk|hf|xai|r8|AIza)[-_]?[\w-]{16,}")
_SHORTEST = 8  # characters. A shorter one is no key: servers without keys are given "none", "EMPTY" or "any"
_given: set[str] = set()


def hide_key(key: str) -> None:
    """Hides a key from now on, whatever its variable is called.

    >>> hide_key("none")
    >>> without_keys("none of them")
    'none of them'
    """
    if len(key) >= _SHORTEST:
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
