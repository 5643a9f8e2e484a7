import pytest

from eh_gym.horizon import EpisodeOutcome


class Journal:
    """A controller that gives the K's it was told in turn, one an update, and keeps what it hears."""

    def __init__(self, *horizons):
        self.horizons = horizons
        self.outcomes = []
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
        return {"kind": "Journal", "tasks": [outcome.task_id for outcome in self.outcomes], "updates": self.updates}

    def load_state_dict(self, state):
        self.outcomes = [EpisodeOutcome(1, 1, True, False, task) for task in state["tasks"]]
        self.updates = state["updates"]


@pytest.fixture(scope="session")
def journal():
    return Journal
