"""The Task that a scenario makes, and how tasks are numbered."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Change:
    """The records of one model that must have been added, updated or removed.

    Attributes:
        model: The model's name, such as "venmo.Transaction".
        kind: "added", "updated" or "removed".
        rows: Field -> value for each record, with the same fields for all. Exactly these records must have changed. For
            updated records, no other field may have changed, except updated_at. None allows any records, for changes
            that an app makes by itself.
    """

    model: str
    kind: str
    rows: Sequence[dict[str, Any]] | None = None


@dataclass
class Task:
    """One task, before it is written.

    Attributes:
        instruction: The task in the person's words.
        steps: The reference solution, the code of each step.
        misread: Pieces of the solution's code, each with the code that a plausible misreading has in its place.
        extra: A step that does something more, which was not asked for.
        changes: The changes that the right solution makes. Nothing else may change.
        answer: The answer that complete_task must get; None if the task asks for no answer.
    """

    instruction: str
    steps: list[str]
    misread: Sequence[tuple[str, str]]
    extra: str
    changes: Sequence[Change] = ()
    answer: Any = None

    @property
    def wrong(self) -> dict[str, list[str]]:
        """Name -> a solution that must fail."""
        steps = self.steps
        for old, new in self.misread:
            assert any(old in step for step in steps), f"{old!r} is not in the solution"
            steps = [step.replace(old, new) for step in steps]
        return {"wrong": steps, "collateral": [*self.steps[:-1], self.extra, self.steps[-1]]}


def task_id(scenario: str, number: int) -> str:
    """A task's id in AppWorld's form: seven hexadecimal digits for the scenario, an underscore, the variant from 1.

    >>> task_id("spotify_genre_count", 2)
    'a580d43_2'
    """
    return f"{hashlib.sha256(scenario.encode()).hexdigest()[:7]}_{number}"


def expected(changes: Sequence[Change]) -> dict[str, Any]:
    """The changes in the form of the evaluation's private data.

    >>> expected([Change("phone.Alarm", "updated", [{"id": 3, "time": "06:10"}]), Change("venmo.User", "updated")])
    {'phone.Alarm': {'updated': {'names': ['id', 'time'], 'rows': [[3, '06:10']]}}, 'venmo.User': {'updated': None}}
    """
    changed: dict[str, Any] = {}
    for one in changes:
        exact = one.rows and {"names": list(one.rows[0]), "rows": [list(row.values()) for row in one.rows]}
        changed.setdefault(one.model, {})[one.kind] = exact
    changed = json.loads(json.dumps(changed, default=str))  # dates as the evaluation prints them
    return changed
