"""AppWorld's plain engine behind the worker protocol, for `benchmarks/appworld.py`; runs in AppWorld's virtualenv."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_world: Any = None


def handle(method: str, params: dict[str, Any]) -> Any:
    """Makes one call, as `appworld_env.py` does; returns its result and its seconds."""
    global _world
    if method == "root":
        sys.dont_write_bytecode = True  # the data belong to the cache, which others also use
        os.environ.update(APPWORLD_ROOT=params["root"], IPYTHONDIR=params["root"])
        import appworld

        appworld.update_root(params["root"])
        return None
    from appworld import AppWorld

    start = time.clock_gettime(time.CLOCK_MONOTONIC)
    result = None
    if method == "open":
        if _world is not None:
            _world.close()  # as at the end of its with block
        _world = AppWorld(task_id=params["task_id"], experiment_name="benchmark")
    if method in ("execute", "finish"):
        _world.execute(params["code"])
    if method in ("evaluate", "finish"):
        result = bool(_world.evaluate().success)
    return result, time.clock_gettime(time.CLOCK_MONOTONIC) - start
