"""Plays the solutions of tasks with the installed AppWorld's own environment and evaluator."""

import json
from pathlib import Path
from typing import Any

from .task import Task


class Unsound(Exception):
    """A task does not judge its own solutions as it should."""


def play(task_id: str, steps: list[str]) -> tuple[Any, list[str]]:
    """AppWorld's verdict (a TestTracker) on a solution played in a new world, and the errors of its steps."""
    from appworld import AppWorld

    with AppWorld(task_id=task_id, experiment_name="mini-check") as world:
        outputs = [world.execute(step) for step in steps]
        return world.evaluate(), [text for text in outputs if text.startswith("Execution failed")]


def check_task(data: Path, task_id: str, task: Task) -> None:
    from appworld.evaluator import TestTracker

    # One step without API documents has the same effect, in half the time.
    wrong = {
        name: ["\n".join(step for step in steps if "apis.api_docs." not in step)] for name, steps in task.wrong.items()
    }
    passed = {}
    for name, steps in {"reference": task.steps, "empty": [], **wrong}.items():
        verdict, raised = play(task_id, steps)
        if raised:
            raise Unsound(f"{task_id}: a step of the {name} solution raises:\n{raised[0]}")
        if verdict.success != (name == "reference"):
            told = "".join(f"\n- {one['requirement']}\n{one['trace']}" for one in verdict.failures)
            raise Unsound(f"{task_id}: the {name} solution {'passes' if verdict.success else 'fails'}{told}")
        # prepare_test_data compares whole entries, so all must start without a label.
        passed[name] = [{"requirement": one["requirement"], "label": None} for one in verdict.passes]
    labelled = TestTracker.prepare_test_data(passed["reference"], passed["empty"])
    (data / "tasks" / task_id / "ground_truth" / "test_data.json").write_text(json.dumps(labelled, indent=1))
