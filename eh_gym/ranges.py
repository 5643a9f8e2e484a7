"""Ranges of numbers beside their types, and the check of a dataclass's fields.

alpha: Annotated[float, Range(0, 1, above=True)] = 0.1
"""

import dataclasses
import difflib
import functools
import math
import numbers
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from eh_gym.errors import ConfigError

_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", NoneType: "None"}


@dataclass(frozen=True)
class Range:
    """The values that a number may have.

    Attributes:
        low: The least value.
        high: The greatest value. By default any finite one.
        above: Whether the value must be above `low`.
        zero: Whether 0, which turns a setting off, is also allowed.

    >>> [str(range) for range in (Range(1), Range(0, 1), Range(0, above=True), Range(0, 2, above=True))]
    ['>= 1', '>= 0 and <= 1', '> 0', '> 0 and <= 2']
    """

    low: float
    high: float = sys.float_info.max
    above: bool = False
    zero: bool = False

    def __str__(self) -> str:
        least = f"{'0 or ' if self.zero else ''}{'>' if self.above else '>='} {self.low:g}"
        return least if self.high >= sys.maxsize else f"{least} and <= {self.high:g}"

    def has(self, value: float) -> bool:
        """Whether a value is in the range. NaN never is."""
        if self.zero and value == 0:
            return True
        return self.low <= value <= self.high and not (self.above and value == self.low)


def check_fields(instance: Any, prefix: str = "", change: Callable[[str], str] = str) -> None:
    """Checks the type and the range of every field, and makes NumPy's numbers Python's. A boolean is not a number.

    Args:
        instance: A dataclass, frozen or not.
        prefix: What messages put before a field's name, such as ``loss.``.
        change: Turns a field's name into the name to change, such as its flag.

    >>> @dataclass
    ... class Loss:
    ...     kl_coef: Annotated[float, Range(0)] = 0.0
    >>> check_fields(Loss(kl_coef=-1), "loss.", lambda name: f"--{name.replace('_', '-')}")
    Traceback (most recent call last):
    eh_gym.errors.ConfigError: loss.kl_coef must be a number >= 0, got -1; change --kl-coef
    """
    # A subclass that is no dataclass may have attributes whose types are unknown.
    declared = next(base for base in type(instance).__mro__ if "__dataclass_fields__" in vars(base))
    hints = hints_of(declared)
    for name in (field.name for field in dataclasses.fields(declared)):
        value = getattr(instance, name)
        try:
            kept = _fitted(hints[name], value)
        except _Misfit:
            finite = " and finite" if isinstance(value, float) and math.isinf(value) else ""
            raise ConfigError(
                f"{prefix}{name} must be {_described(hints[name])}{finite}, got {value!r}; change {change(name)}"
            ) from None
        if kept is not value:
            object.__setattr__(instance, name, kept)


def near(name: str, known: Collection[str]) -> str:
    """Ends an error message about an unknown name.

    >>> near("kl_coeff", ["kl_coef", "tis_cap"]), near("x", ["kl_coef", "tis_cap"])
    ('; did you mean kl_coef?', '; there are kl_coef, tis_cap')
    """
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


@functools.cache  # a hundred times as slow as checking the fields
def hints_of(declared: type) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, with what stands beside them."""
    return get_type_hints(declared, include_extras=True)


class _Misfit(Exception):
    """A value is not of a type, or not in its range."""


def _fitted(hint: Any, value: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kept = _fitted(inner[0], value)
        if isinstance(kept, (int, float)) and any(isinstance(r, Range) and not r.has(kept) for r in hint.__metadata__):
            raise _Misfit
        return kept
    if origin in (Union, UnionType):
        for one in inner:
            try:
                return _fitted(one, value)
            except _Misfit:
                pass
    elif origin is Literal:
        if any(type(value) is type(choice) and value == choice for choice in inner):
            return value
    elif hint in (int, float):
        if type(value) is not bool and isinstance(value, numbers.Integral if hint is int else numbers.Real):
            try:
                return hint(value)
            except OverflowError:  # a whole number that no float can hold
                pass
    elif isinstance(value, origin or hint):
        return value
    raise _Misfit


def _described(hint: Any, allowed: Range | None = None) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _described(inner[0], next((one for one in hint.__metadata__ if isinstance(one, Range)), None))
    if origin in (Union, UnionType):
        return " or ".join(_described(one, allowed) for one in inner)
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    name = _NAMES.get(hint) or str((origin or hint).__name__)
    return f"{name}{',' if allowed.zero else ''} {allowed}" if allowed and hint in (int, float) else name
