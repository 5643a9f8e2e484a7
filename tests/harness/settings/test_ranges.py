"""The ranges that settings declare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from eh_gym.errors import ConfigError
from harness.settings.grpo import GRPOConfig
from harness.settings.ranges import Range, check_settings


@dataclass(frozen=True)
class Sizes:
    count: Annotated[int, Range(1, 9)] = 1
    share: Annotated[float, Range(0, above=True)] = 1.0
    cap: Annotated[float, Range(2, zero=True)] = 0.0
    limit: Annotated[int | None, Range(1)] = None
    free: int = -1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "count: expected >= 1 and <= 9, got 0; raise --count"),
        ({"count": 10**400}, "; lower --count"),
        ({"share": 0.0}, "share: expected > 0, got 0.0; raise --share"),
        ({"share": math.nan}, "share: expected > 0, got nan; change --share"),
        ({"share": math.inf}, "share: expected > 0 and finite, got inf; lower --share"),
        ({"cap": 1.0}, "cap: expected 0 or >= 2, got 1.0; raise --cap"),
        ({"limit": 0}, "limit: expected >= 1, got 0; raise --limit"),
    ],
)
def test_the_error_is_written_from_the_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("+", r"\+")):
        check_settings(Sizes(**values))


@pytest.mark.parametrize("settings", [{"updates": 0}, {"warm_start": {"polish_waste": 2.0}}])
def test_a_run_checks_its_ranges(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(settings))}.*expected"):
        GRPOConfig(**settings)
