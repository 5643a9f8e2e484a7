"""AppWorld's plain engine behind the project's worker protocol, for `benchmarks/appworld.py`; runs in AppWorld's
virtualenv.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_world: Any = None


def handle(method: str, params: dict[str, Any]) -> Any:
    """Makes one call on the plain engine; returns its result and its seconds. The methods are those of `Ours.call`
    there.
    """
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
    if method in ("execute", "complete", "finish"):
        _world.execute(params["code"])
    if method in ("evaluate", "finish"):
        result = bool(_world.evaluate().success)
    return result, time.clock_gettime(time.CLOCK_MONOTONIC) - start
