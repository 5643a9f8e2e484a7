"""The range of a setting, written beside it, and the one function that checks all settings of a command.

learning_rate: Annotated[float, Range(0)] = 1e-6
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from eh_gym.errors import ConfigError

__all__ = ["Range", "check_ranges"]


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


def check_ranges(settings: Any, group: str = "") -> None:
    """Checks every setting that declares a `Range`. What is no number passes, such as None for a default that is chosen later.

    Args:
        settings: A dataclass.
        group: What precedes its settings' names in flags, such as ``warm_start.``.

    Raises:
        ConfigError: A value is out of its range. The message names the setting, the range and the flag.
    """
    for name, allowed in _ranges(type(settings)).items():
        value = getattr(settings, name)
        if not isinstance(value, (int, float)) or allowed.has(value):
            continue
        change = "lower" if value > allowed.high else "raise" if value <= allowed.low else "change"
        finite = " and finite" if value == math.inf else ""
        flag = f"--{group}{name}".replace("_", "-")
        raise ConfigError(f"{group}{name}: expected {allowed}{finite}, got {value}; {change} {flag}")


def _ranges(settings: type) -> Mapping[str, Range]:
    hints = get_type_hints(settings, include_extras=True)
    return {
        name: found
        for name, hint in hints.items()
        for found in getattr(hint, "__metadata__", ())
        if isinstance(found, Range)
    }
