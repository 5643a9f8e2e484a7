"""Experts' episodes for the benchmarks of environments elsewhere: their messages, their time per step, and a process's
memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym

Script = tuple[str, list[str]]
"""A task's id, and the expert's messages that solve it."""


def scripts(env_id: str, arguments: Mapping[str, Any], count: int = 16) -> list[Script]:
    """Returns the first tasks with the expert's messages."""
    env: Any = gym.make(env_id, disable_env_checker=True, **arguments)
    played = []
    for task_id in env.unwrapped.task_ids[:count]:
        env.reset(options={"task_id": task_id})
        messages, over = [], False
        while not over:
            messages.append(env.unwrapped.expert())
            over = env.step(messages[-1])[2]
        played.append((task_id, messages))
    env.close()
    return played


def play(env: gym.Env[str, str], some: Sequence[Script], count: int) -> int:
    """Plays `count` episodes and returns their steps."""
    steps = 0
    for index in range(count):
        task_id, messages = some[index % len(some)]
        env.reset(options={"task_id": task_id})
        for message in messages:
            answer = env.step(message)
        assert answer[1] == 1.0, answer
        steps += len(messages)
    return steps


def microseconds(envs: Sequence[gym.Env[str, str]], some: Sequence[Script], count: int) -> float:
    """Returns the microseconds per step, with its share of the resets. Each environment has its own thread."""
    with ThreadPoolExecutor(len(envs)) as threads:
        start = time.perf_counter()
        steps = sum(threads.map(lambda env: play(env, some, count), envs))
        return 1e6 * (time.perf_counter() - start) / steps


def pss_mb(pid: int) -> float:
    """Returns the PSS of a process in MB; 0 if it has ended."""
    with suppress(ProcessLookupError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
    return 0.0
