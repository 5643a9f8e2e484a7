"""The evaluation of every task, in AppWorld's form. Its text is written beside each task, as `evaluation.py`.

It compares the world at the start with that at the end. ``private_data`` says what may change: model -> kind of change
-> what exactly, as `task.expected` writes it. What a task states is compared exactly, what it leaves open is not.
"""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any


def ordered(rows: list[Any]) -> list[str]:
    """The rows in an order of their own."""
    return sorted(json.dumps(row, default=str) for row in rows)


def evaluate(
    test: Any, public_data: Any, private_data: Any, main_user: Any, models: Any, ground_truth_answer: Any
) -> None:
    """Check the answer (no answer counts as one too), the set of models that changed, and the records of each."""
    with test("assert the answer matches the ground truth answer."):
        test.answer(json.loads(models.end.supervisor.Task.first().answer), ground_truth_answer)
    with test(f"assert only these models have changed: {', '.join(private_data) or 'none'}."):
        test.case(models.changed_model_names(), "==", set(private_data))
    for model, kinds in private_data.items():
        for kind, records in zip(("added", "updated", "removed"), models.changed_records(model), strict=True):
            if kind not in kinds:
                with test(f"assert no {model} has been {kind}."):
                    test.case(len(records), "==", 0)
            elif kinds[kind] is not None:
                names = kinds[kind]["names"]
                with test(f"assert the {model} records that have been {kind} are the right ones."):
                    values = [[attrgetter(name)(record) for name in names] for record in records]
                    test.case(ordered(values), "==", ordered(kinds[kind]["rows"]))
                if kind == "updated":
                    with test(f"assert nothing else of the updated {model} records has changed."):
                        changed = [models.changed_field_names(model, record.id) for record in records]
                        test.case(sorted(set().union(*changed) - {*names, "updated_at"}), "==", [])
