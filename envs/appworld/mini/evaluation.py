"""Writes a task's evaluation code, in AppWorld's form, from the changes that the task asks for.

``evaluate(test, public_data, private_data, main_user, models, ground_truth_answer)`` compares the world at the start with
the world at the end. Every task checks its answer (no answer counts as one too) and the set of models that changed. What a
task states is compared exactly, without tolerance. What it leaves open is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Change", "evaluation", "expected"]

KINDS = ("added", "updated", "removed")

_HEAD = '''import json
from operator import attrgetter


def listed(records, names):
    """The named fields of each record, in an order of their own."""
    return ordered([[attrgetter(name)(record) for name in names] for record in records])


def ordered(rows):
    return sorted(json.dumps(row, default=str) for row in rows)


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    predicted_answer = json.loads(models.end.supervisor.Task.first().answer)

    with test("""assert the answer matches the ground truth answer."""):
        test.answer(predicted_answer, ground_truth_answer)

'''
_NOTHING = '''    with test("""assert no models have changed."""):
        test.case(models.changed_model_names(), "==", set())
'''
_ONLY = '''    with test("""assert only these models have changed: {names}."""):
        test.case(models.changed_model_names(), "==", {{{quoted}}})
'''
_RECORDS = """
    added, updated, removed = models.changed_records("{model}")
"""
_NONE = '''
    with test("""assert no {model} has been {kinds}."""):
        test.case({total}, "==", 0)
'''
_ROWS = '''
    with test("""assert the {model} records that have been {kind} are the right ones."""):
        test.case(listed({kind}, {names}), "==", ordered(private_data["{key}"]))
'''
_FIELDS = '''
    with test("""assert nothing else of the updated {model} records has changed."""):
        changed = [models.changed_field_names("{model}", record.id) for record in updated]
        test.case(sorted(set().union(*changed) - {{{allowed}}}), "==", [])
'''


@dataclass(frozen=True)
class Change:
    """The records of one model that must have been added, updated or removed.

    Attributes:
        model: The model's name, such as "venmo.Transaction".
        kind: "added", "updated" or "removed".
        rows: Field -> value for each record, with the same fields for all. "playlist.title" is a field of the record that a
            field refers to. Exactly these records must have changed in this way. For updated records, no other field may
            have changed, except updated_at. None allows any records, for changes that an app makes by itself (balances,
            notifications).
        ignored: Further fields of updated records that may have changed.
    """

    model: str
    kind: str
    rows: Sequence[dict[str, Any]] | None = None
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.kind in KINDS
        assert self.rows is None or len({tuple(row) for row in self.rows}) == 1, (
            f"{self.model}: there are no rows, or they are of two sorts"
        )

    @property
    def key(self) -> str:
        """The key of its rows in the evaluation's private data."""
        return f"{self.kind} {self.model}"


def expected(changes: Sequence[Change]) -> dict[str, list[list[Any]]]:
    """The rows of the changes, in the form of the evaluation's private data.

    >>> expected([Change("phone.Alarm", "updated", [{"id": 3, "time": "06:10"}]), Change("venmo.User", "updated")])
    {'updated phone.Alarm': [[3, '06:10']]}
    """
    rows = {one.key: [list(row.values()) for row in one.rows] for one in changes if one.rows is not None}
    found: dict[str, list[list[Any]]] = json.loads(json.dumps(rows, default=str))  # dates as the evaluation prints them
    return found


def evaluation(changes: Sequence[Change]) -> str:
    """The code of a task's evaluation, which checks that the changes have happened and nothing else has.

    >>> evaluation([]).rpartition("assert ")[2].partition(".")[0]
    'no models have changed'
    """
    if not changes:
        return _HEAD + _NOTHING
    assert len({one.key for one in changes}) == len(changes), "two changes of the same records"
    models = list(dict.fromkeys(one.model for one in changes))
    parts = [_HEAD, _ONLY.format(names=", ".join(models), quoted=", ".join(f'"{name}"' for name in models))]
    for model in models:
        mine = {one.kind: one for one in changes if one.model == model}
        others = [kind for kind in KINDS if kind not in mine]
        parts.append(_RECORDS.format(model=model))
        if others:
            total = " + ".join(f"len({kind})" for kind in others)
            parts.append(_NONE.format(model=model, kinds=" or ".join(others), total=total))
        for kind, change in mine.items():
            if change.rows is None:
                continue
            names = list(change.rows[0])
            parts.append(_ROWS.format(model=model, kind=kind, names=json.dumps(names), key=change.key))
            if kind == "updated":
                allowed = sorted({*names, "updated_at", *change.ignored} - {"id"})
                parts.append(_FIELDS.format(model=model, allowed=", ".join(f'"{name}"' for name in allowed)))
    return "".join(parts)
