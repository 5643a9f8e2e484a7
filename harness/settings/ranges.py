"""The range of a setting, written beside its type, and the one function that checks all settings of a command.

learning_rate: Annotated[float, Range(0)] = 1e-6
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tyro.conf import Fixed, Suppress

from eh_gym.errors import ConfigError

__all__ = ["NoFlag", "Range", "check_settings", "expected"]

T = TypeVar("T")
NoFlag = Annotated[T, Fixed, Suppress]
"""The type of a setting that only recipes and Python programs give."""


@dataclass(frozen=True)
class Range:
    """The values that a setting may have.

    Attributes:
        low: The least value.
        high: The greatest value. By default any finite one.
        above: Whether the value must be above `low`.
        zero: Whether 0 is allowed besides. It turns the setting off.

    >>> [str(range) for range in (Range(1), Range(0, 1), Range(0, above=True), Range(0, 2, above=True), Range(16, zero=True))]
    ['>= 1', '>= 0 and <= 1', '> 0', '> 0 and <= 2', '0 or >= 16']
    """

    low: float
    high: float = sys.float_info.max
    above: bool = False
    zero: bool = False

    def __str__(self) -> str:
        least = f"{'0 or ' if self.zero else ''}{'>' if self.above else '>='} {self.low:g}"
        return least if self.high >= sys.maxsize else f"{least} and <= {self.high:g}"

    def has(self, value: float) -> bool:
        """Whether a value is in the range. NaN is in none."""
        if self.zero and value == 0:
            return True
        return self.low <= value <= self.high and not (self.above and value == self.low)


def check_settings(settings: Any, group: str = "") -> None:
    """Checks the type of every setting, and the range of those that are numbers.

    A command line has checked the types already, and a Python program has not.

    Args:
        settings: A dataclass.
        group: What precedes its settings' names in flags, such as ``warm_start.``.

    Raises:
        ConfigError: A value is wrong. The message names the setting, what it may be, and the flag.
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for name in (field.name for field in dataclasses.fields(settings)):
        metadata = getattr(hints[name], "__metadata__", ())
        flag = f"{group}{name}" if Fixed in metadata else f"--{group}{name}".replace("_", "-")
        value = getattr(settings, name)
        if wanted := expected(hints[name], value):
            raise ConfigError(f"{group}{name}: expected {wanted}, got {value!r}; change {flag}")
        for allowed in metadata:
            if isinstance(allowed, Range) and isinstance(value, (int, float)) and not allowed.has(value):
                change = "lower" if value > allowed.high else "raise" if value <= allowed.low else "change"
                finite = " and finite" if value == math.inf else ""
                raise ConfigError(f"{group}{name}: expected {allowed}{finite}, got {value}; {change} {flag}")


def expected(hint: Any, value: Any) -> str:
    """Says what a setting with this type may be, if `value` is not that; else returns "".

    A whole number is also a float, and a boolean is not a number. NumPy's whole numbers are refused, because a run's
    ``config.json`` can't keep them.

    >>> expected(Literal["a", "b"], "c"), expected(float, 2), expected(int | None, True)
    ("one of 'a', 'b'", '', 'int or None')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return expected(inner[0], value)
    if origin in (Union, UnionType):
        found = [expected(one, value) for one in inner]
        return " or ".join(found) if all(found) else ""
    if origin is Literal:
        same = any(type(value) is type(choice) and value == choice for choice in inner)
        return "" if same else f"one of {', '.join(map(repr, inner))}"
    if hint is type(None):
        return "" if value is None else "None"
    kind = origin or hint
    if isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool)):
        return ""
    return str(kind.__name__)
