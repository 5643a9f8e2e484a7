"""Spellings of flags that this version still takes, and that the next one will refuse."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["OLD_FLAGS", "with_current_names"]

_TRAINING = {"--tti-stages": "--stages", "--run-dir": "--out", "--lr": "--learning-rate"}
OLD_FLAGS = {
    "grpo": _TRAINING,
    "sweep": _TRAINING,
}
"""For each command its old flags, with their present names."""


def with_current_names(words: Sequence[str], command: str) -> list[str]:
    """Returns a command line with each old flag under its present name. As in tyro, underscores stand for hyphens.

    >>> with_current_names(["--tti_stages=0:15", "--seed", "3"], "grpo")
    ['--stages=0:15', '--seed', '3']
    """
    old = OLD_FLAGS.get(command, {})
    renamed = []
    for word in words:
        flag, equals, value = word.partition("=")
        new = old.get(flag.replace("_", "-")) if flag.startswith("--") else None
        renamed.append(f"{new}{equals}{value}" if new else word)
    return renamed
