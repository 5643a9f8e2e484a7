"""The range of a setting and the check of a command's settings: those of `eh_gym.ranges`, with the names of flags."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_type_hints

from tyro.conf import Fixed, Suppress

from eh_gym.ranges import Range, check_fields, expected

__all__ = ["NoFlag", "Range", "check_settings", "expected"]

T = TypeVar("T")
NoFlag = Annotated[T, Fixed, Suppress]
"""The type of a setting that only recipes and Python programs give."""


def check_settings(settings: Any, group: str = "") -> None:
    """Checks the type of every setting, and the range of those that are numbers; see `check_fields`.

    Args:
        settings: A dataclass.
        group: What precedes its settings' names in flags, such as ``warm_start.``.
    """
    hints = get_type_hints(type(settings), include_extras=True)

    def flag(name: str) -> str:
        if Fixed in getattr(hints[name], "__metadata__", ()):
            return f"{group}{name}"
        return f"--{group}{name}".replace("_", "-")

    check_fields(settings, group, flag)
