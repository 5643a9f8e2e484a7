"""EH-AppWorld-v0 behind the worker protocol, for `benchmarks/appworld.py`."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

_envs: dict[int, Any] = {}
_burning: list[threading.Thread] = []
_new: Any = None


def handle(method: str, params: dict[str, Any]) -> Any:
    """Makes one call; returns its result and its seconds.

    ``root`` names the project, and comes first. All others may have ``slot``, the number of an environment. "open"
    begins a task's episode, and ends the one before; "execute" runs code; "finish" runs the code that completes the
    task. "pids" are those of the processes that worlds are forked from. "burn" runs code in all
    ``slots`` at once; "burning" is the number of those that still run.
    """
    global _new
    if method == "root":
        sys.path.insert(0, params["root"])
        from envs.appworld.env import AppWorldEnv

        _new = AppWorldEnv
        return None
    if method == "burn":
        _burning[:] = [threading.Thread(target=_envs[slot].step, args=(params["code"],)) for slot in params["slots"]]
        for thread in _burning:
            thread.start()
        return None
    if method == "burning":
        return sum(thread.is_alive() for thread in _burning)
    slot = params.pop("slot", 0)
    if slot not in _envs:
        _envs[slot] = _new(split="mini")
    env = _envs[slot]
    if method == "pids":
        return [pid for pid in env._host.pids if pid]
    start, result = time.perf_counter(), None
    if method == "open":
        env.reset(options=params)
    elif method == "execute":
        _, _, *ended, _ = env.step(params["code"])
        assert params.get("may_end") or not any(ended)
    else:
        result = env.step(params["code"])[1] == 1.0
    return result, time.perf_counter() - start
