"""The options of a reset, as every EH-* environment takes them."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import gymnasium as gym

from eh_gym.errors import ConfigError


def named_task(options: object) -> Any:
    """Returns the task id that the options of a reset name; None if they name none.

    >>> named_task({"task_id": "dev-000001"}), named_task({}), named_task(None)
    ('dev-000001', None, None)
    """
    if options is None:
        return None
    if not isinstance(options, Mapping) or not set(options) <= {"task_id"}:
        raise ConfigError(f'options must be None or {{"task_id": id}}, the one option of a reset, got {options!r}')
    return options.get("task_id")


def chosen_task(env: gym.Env[str, str], options: object, known: Container[str], kind: str) -> str:
    task_ids: Sequence[str] = env.get_wrapper_attr("task_ids")
    task_id = named_task(options)
    if task_id is None:
        return task_ids[int(env.np_random.integers(len(task_ids)))]
    if isinstance(task_id, str) and task_id in known:
        return task_id
    raise ConfigError(
        f"expected {kind} such as {task_ids[0]!r}, got {task_id!r}; env.unwrapped.task_ids lists the ids of the split"
    )
