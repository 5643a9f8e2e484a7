"""A number that a check measured, beside what is promised of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Measurement"]


@dataclass(frozen=True)
class Measurement:
    """A number that a check measured, and what is promised of it.

    Attributes:
        what: What the number is, with its unit.
        value: The number.
        least: The least that is promised.
        most: The most that is promised.
        speed: Whether a broken promise makes the path slow. Otherwise it makes the path wrong.
    """

    what: str
    value: float
    least: float = -math.inf
    most: float = math.inf
    speed: bool = False

    @property
    def kept(self) -> bool:
        """Whether the number is as promised. NaN is not."""
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        bounds = [f">= {self.least:g}"] * (self.least > -math.inf) + [f"<= {self.most:g}"] * (self.most < math.inf)
        return f"{self.what} {self.value:.4g}" + (f" ({' and '.join(bounds)})" if bounds else "")
