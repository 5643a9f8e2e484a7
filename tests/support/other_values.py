from contextlib import suppress
from typing import TypeVar

from eh_gym.errors import ConfigError
from harness.settings.section import changed, flat, marks

T = TypeVar("T")


def with_others(settings, *what):
    """Gives another value to each number and switch that changes one of these, unless it does not fit the others."""
    for name, value in flat(settings).items():
        if marks(type(settings)).get(name) in what and isinstance(value, (int, float, type(None))):
            other = not value if isinstance(value, bool) else (value or 0) // 2 or 1
            with suppress(ConfigError):
                settings = changed(settings, **{name: other})
    return settings
