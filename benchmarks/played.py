"""Experts' episodes for the benchmarks of environments: their messages, their time per step, a process's memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym

Script = tuple[str, list[str]]
"""A task's id, and the expert's messages that solve it."""


def scripts(env_id: str, arguments: Mapping[str, Any], tasks: Sequence[str] = ()) -> list[Script]:
    """Returns these tasks, or the first 16, with the expert's messages."""
    env: Any = gym.make(env_id, disable_env_checker=True, **arguments)
    played = []
    for task_id in tasks or env.unwrapped.task_ids[:16]:
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


def make(count: int, env_id: str, **arguments: Any) -> list[gym.Env[str, str]]:
    """Makes environments."""
    return [gym.make(env_id, disable_env_checker=True, **arguments) for _ in range(count)]


HEADS = f"{'local':>9}{'there':>9}{'ratio':>8}{'more':>9}"
"""Of the columns of `compared`."""


def compared(local: Any, there: Any, some: Sequence[Script], count: int, repeats: int) -> str:
    """Returns the median microseconds per step in this process and elsewhere, as a row; closes the environments."""
    microseconds(local, some, count), microseconds(there, some, count)  # warms the caches
    times = [(microseconds(local, some, count), microseconds(there, some, count)) for _ in range(repeats)]
    for env in (*local, *there):
        env.close()
    near, far = map(statistics.median, zip(*times, strict=True))
    return f"{near:>9.0f}{far:>9.0f}{far / near:>7.1f}x{far - near:>9.0f}"


def pss_mb(pid: int) -> float:
    """Returns the PSS of a process in MB; 0 if it has ended."""
    with suppress(ProcessLookupError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
    return 0.0
