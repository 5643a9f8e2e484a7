"""What a check measured, and its outcome (right, slow, wrong or left out), as a table and as a text to attach to a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.run.versions import package_versions

__all__ = ["Measurement", "Result", "about", "report", "row", "verdict"]


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


@dataclass(frozen=True)
class Result:
    """The outcome of a check.

    Attributes:
        name: The name of the check.
        verdict: "right", "slow", "wrong", or "left out".
        seconds: How long it took.
        measurements: What it measured.
        why: The end of its log if it is wrong; the reason if it was left out.
    """

    name: str
    verdict: str
    seconds: float = 0.0
    measurements: tuple[Measurement, ...] = ()
    why: str = ""


def verdict(name: str, measurements: Sequence[Measurement], seconds: float) -> Result:
    """Judges a check by its measurements."""
    broken = [one for one in measurements if not one.kept]
    word = "right" if not broken else "slow" if all(one.speed for one in broken) else "wrong"
    return Result(name, word, seconds, tuple(measurements), "\n".join(f"not as promised: {one}" for one in broken))


def report(results: Sequence[Result], about: Mapping[str, str]) -> str:
    """The text to attach to a report: the machine, the table, and why a check is not right."""
    lines = [*(f"{name}: {value}" for name, value in about.items()), ""]
    lines += [row(result) for result in results]
    for result in results:
        if result.verdict in ("wrong", "slow"):
            lines += ["", f"--- {result.name}: {result.verdict}", result.why]
    return "\n".join(lines) + "\n"


def row(result: Result) -> str:
    """One line of the table."""
    said = "; ".join(map(str, result.measurements)) or result.why.splitlines()[-1]
    return f"{result.name:38} {result.verdict:8} {result.seconds:5.0f} s  {said}"


def about(device: str) -> dict[str, str]:
    """The machine and the packages, for the report."""
    import torch

    gpus = torch.cuda.device_count() if device == "cuda" else 0
    name = torch.cuda.get_device_name() if gpus else "none"
    return {"GPUs": str(gpus), "GPU": name, "CUDA": str(torch.version.cuda), **package_versions()}
