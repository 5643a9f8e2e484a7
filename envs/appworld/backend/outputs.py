"""Writes an episode as AppWorld's own experiment outputs: the state of its world, its code and its API calls.

It runs AppWorld's engine without this project's adaptations. The agent's code does not run here: the API calls that it made
are made again, as a judge does.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from . import calls

_ENGINE_TIMEOUT_S = 3600  # the caller's deadline is shorter
_MANY = 10**9  # the episode kept its limits when it was played


def handle(method: str, params: Mapping[str, Any]) -> str | None:
    """``write(root, experiment, task_id, calls, turns)`` -> None, or what went wrong.

    Each task has a process of its own, because the engine lets some of an episode through to the next one in a process.
    """
    assert method == "write", method
    os.environ["APPWORLD_ROOT"] = params["root"]
    import appworld.environment  # noqa: F401 - once, before the forks

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        error = b""
        try:
            _write(params)
        except BaseException:
            error = traceback.format_exc().encode()
        os.write(writing, error[-4000:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    return said or (f"the process ended with status {status}" if status else None)


def _write(params: Mapping[str, Any]) -> None:
    from appworld import AppWorld

    world = AppWorld(
        task_id=params["task_id"],
        experiment_name=params["experiment"],
        load_ground_truth=False,
        timeout_seconds=_ENGINE_TIMEOUT_S,
        max_interactions=_MANY,
        max_api_calls_per_interaction=_MANY,
    )
    calls.tap(world, _MANY)  # the engine's random numbers are a stream of their own, as in the agent's world
    find = calls.public_routes()
    world.safety_guard.enable()
    for call in params["calls"]:
        if calls.make(world, call, find) is not None:
            world.requester.request_tracker.requests.append(_logged(call))
    world.safety_guard.disable()
    world.environment_io = [{"input": code, "output": output} for code, output in params["turns"]]
    world._save_state(world.output_db_home_path_on_disk)
    world.save_logs()
    world.close()


def _logged(call: calls.Call) -> dict[str, Any]:
    """A call in the form of the engine's log."""
    url = urlsplit(call["url"])
    try:
        body = json.loads(call["body"] or "{}")
    except ValueError:  # a form, as the login APIs take it
        body = dict(parse_qsl(call["body"]))
    data = {**dict(parse_qsl(url.query)), **(body if isinstance(body, dict) else {})}
    return {"method": call["method"].lower(), "url": url.path, "data": data}
