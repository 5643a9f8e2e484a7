"""Checks of numbers in settings."""

import math
import numbers

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import is_whole


def positive_int(name: str, value: int) -> int:
    """`value`, if it is a whole number >= 1, numpy's included."""
    if not is_whole(value) or value < 1:
        raise ConfigError(f"{name} must be a whole number >= 1, got {value!r}; pass an int such as 15")
    return int(value)


def is_number(value: object) -> bool:
    """Whether `value` is a finite real number, numpy's included."""
    try:
        return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def check_bounds(k_min: int, k_max: int) -> None:
    """Raises ConfigError if the two bounds are not in order."""
    if k_max < k_min:
        raise ConfigError(f"k_max must be >= k_min ({k_min}), got {k_max}; raise k_max or lower k_min")


def floor_to_steps(k: float) -> int:
    """The floor of `k`, up to rounding errors: 7 + 0.7 * 170 is 125.99999999999999 in floating point.

    >>> floor_to_steps(7 + 0.7 * 170), floor_to_steps(19.999)
    (126, 19)
    """
    return math.floor(k + 1e-9)
