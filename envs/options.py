"""The options of a reset, as every EH-* environment takes them."""

from collections.abc import Mapping
from typing import Any

from eh_gym.errors import ConfigError


def named_task(options: object) -> Any:
    """Returns the task id that the options of a reset name; None if they name none.

    Raises:
        ConfigError: The options are not a dict, or have another key: with a misspelt key, another task would be drawn.

    >>> named_task({"task_id": "dev-000001"}), named_task({}), named_task(None)
    ('dev-000001', None, None)
    """
    if options is None:
        return None
    if not isinstance(options, Mapping) or not set(options) <= {"task_id"}:
        raise ConfigError(f'options must be None or {{"task_id": id}}, the one option of a reset, got {options!r}')
    return options.get("task_id")
