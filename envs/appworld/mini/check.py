"""Plays tasks with the installed AppWorld's own environment and evaluator.

A task is sound if its reference solution succeeds, doing nothing fails, and each of its wrong solutions fails.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

__all__ = ["Unsound", "check_task", "play"]


class Unsound(Exception):
    """A task does not judge its own solutions as it should."""


def play(task_id: str, steps: list[str]) -> tuple[Any, list[str]]:
    """AppWorld's verdict (a TestTracker) on a solution played in a new world, and what each turn printed."""
    from appworld import AppWorld

    with AppWorld(task_id=task_id, experiment_name="mini-check") as world:
        said = [world.execute(step) for step in steps]
        return world.evaluate(), said


def check_task(data: Path, task_id: str) -> None:
    """Check one task, and complete its ground truth: test_data.json and the number of API calls.

    Raises:
        Unsound: The task is not sound. The message says which solution was judged wrongly, and how.
    """
    from appworld.evaluator import TestTracker

    truth = data / "tasks" / task_id / "ground_truth"
    steps = json.loads((truth / "steps.json").read_text())
    wrong = json.loads((truth / "wrong.json").read_text())
    right, said = play(task_id, steps)
    failed = [text for text in said if text.startswith("Execution failed")]
    if failed:
        raise Unsound(f"{task_id}: a turn of the reference solution raises:\n{failed[0]}")
    if not right.success:
        raise Unsound(f"{task_id}: the reference solution fails:\n{_told(right)}")
    calls = _calls(data, task_id)
    nothing, _ = play(task_id, [])
    if nothing.success:
        raise Unsound(f"{task_id}: doing nothing passes")
    # prepare_test_data adds the labels. It compares whole entries, so all of them must start without a label.
    bare = [
        [{"requirement": one["requirement"], "label": None} for one in verdict.passes] for verdict in (right, nothing)
    ]
    (truth / "test_data.json").write_text(json.dumps(TestTracker.prepare_test_data(*bare), indent=1))
    if "wrong" not in wrong or "collateral" not in wrong:
        raise Unsound(f'{task_id}: its wrong solutions must include "wrong" and "collateral", found {sorted(wrong)}')
    for name, solution in wrong.items():
        # The solution is run in one step and without reading API documents. Its effect is the same, in half the time.
        acts = "\n".join(step for step in solution if "apis.api_docs." not in step)
        verdict, said = play(task_id, [acts])
        broken = [text for text in said if text.startswith("Execution failed")]
        if broken:
            raise Unsound(
                f"{task_id}: a turn of the wrong solution {name!r} raises instead of being wrong:\n{broken[0]}"
            )
        if verdict.success:
            raise Unsound(f"{task_id}: the wrong solution {name!r} passes")
    metadata = json.loads((truth / "metadata.json").read_text())
    (truth / "metadata.json").write_text(json.dumps({**metadata, "num_api_calls": len(calls)}, indent=4))
    (truth / "api_calls.json").write_text(json.dumps(calls, indent=1))
    for path in (f"dbs/{app.stem}.jsonl" for app in (data / "base_dbs").glob("*.db")):
        if not (data / "tasks" / task_id / path).exists():
            raise Unsound(f"{task_id}: {path} is missing")


def _calls(data: Path, task_id: str) -> list[Any]:
    """The API calls that the last play made, from AppWorld's log. The log's folder is deleted."""
    folder = data.parent / "experiments" / "outputs" / "mini-check" / "tasks" / task_id
    lines = (folder / "logs" / "api_calls.jsonl").read_text().splitlines()
    shutil.rmtree(folder)
    return [json.loads(line) for line in lines if line.strip()]


def _told(verdict: Any) -> str:
    return "\n".join(f"- {one['requirement']}\n{one['trace']}" for one in verdict.failures)
