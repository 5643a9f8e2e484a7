import sys
from pathlib import Path

import pytest

from eh_gym.horizon import EpisodeOutcome


class Ledger:
    """A controller that keeps every outcome it hears, so that tests can count them."""

    def __init__(self, horizons=(15,)):
        self.outcomes = []
        self.horizons = horizons
        self.updates = 0

    @property
    def horizon(self):
        return self.horizons[self.updates % len(self.horizons)]

    def record(self, outcome):
        self.outcomes.append(outcome)

    def update(self):
        self.updates += 1
        return {"horizon/k": float(self.horizon)}

    def state_dict(self):
        return {"kind": "Ledger", "tasks": [outcome.task_id for outcome in self.outcomes], "updates": self.updates}

    def load_state_dict(self, state):
        self.outcomes = [EpisodeOutcome(1, 1, True, False, task) for task in state["tasks"]]
        self.updates = state["updates"]


@pytest.fixture
def make_ledger():
    return Ledger


@pytest.fixture
def readers(monkeypatch):
    """The module whose functions run in the reader processes; they import it by name, from this folder."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import reader_processes

    yield reader_processes
    sys.modules.pop("reader_processes", None)
