"""What a judge makes again of an episode's calls, with an invented engine; test_adaptations.py compares the real one's states."""

from types import SimpleNamespace

import pytest

from envs.appworld.backend import adaptations, calls, judge, world


class Engine:
    """A world with one database. A GET counts as made; a POST changes the database, a PUT draws a random number."""

    def __init__(self):
        self.made = []
        self.db = SimpleNamespace(connection=SimpleNamespace(total_changes=0), tracker=SimpleNamespace(changes=[]))
        self.models = {"app": SimpleNamespace(SQLModel=SimpleNamespace(db=self.db))}
        self.safety_guard = SimpleNamespace(enable=lambda: None, disable=lambda: None)
        self.line = SimpleNamespace(random_state=(0,))

    def make(self, _, call, find):
        self.made.append(call["method"] + call["url"])
        if call["method"] == "POST":
            self.db.connection.total_changes += 1
        if call["method"] == "DELETE":
            self.db.tracker.changes.append("DELETE")
        if call["method"] == "PUT":
            self.line.random_state = (len(self.made),)
        return None if call["url"] == "/private" else 200


@pytest.fixture
def engine(monkeypatch):
    engine = Engine()
    monkeypatch.setattr(world, "open_world", lambda *_, **__: (engine, engine.line))
    monkeypatch.setattr(calls, "make", engine.make)
    monkeypatch.setattr(adaptations, "flush", lambda _: None)
    monkeypatch.setattr(
        judge, "evaluate", lambda _: SimpleNamespace(success=True, pass_count=1, num_tests=1, failures=[])
    )
    return engine


def call(method="GET", url="/a", status=200, body="", **headers):
    return {"method": method, "url": url, "headers": headers, "body": body, "status": status}


@pytest.mark.parametrize("change", ["POST", "DELETE", "PUT", "PATCH"])
def test_a_get_that_changed_nothing_is_made_again_only_after_a_possible_change(engine, change):
    """PATCH changes nothing that a judge can see, as a log-out does, which ends an access token."""
    replay = judge.Replay("a_1", None)
    replay.make([call(), call(), call(url="/b"), call()])
    assert engine.made == ["GET/a", "GET/b"]
    replay.make([call(change, "/c"), call(change, "/c"), call(), call()])
    assert engine.made[2:] == [f"{change}/c", f"{change}/c", "GET/a"]


def test_calls_that_differ_in_anything_are_other_calls(engine):
    replay = judge.Replay("a_1", None)
    different = [call(), call(url="/b"), call(body="x"), call(x="1"), call(x="2"), call(y="1")]
    replay.make(different * 2)
    assert len(engine.made) == len(different)


def test_the_verdict_counts_every_call_that_differed_or_was_none(engine):
    replay = judge.Replay("a_1", None)
    replay.make([call(status=500)] * 3 + [call(url="/private")] * 2 + [call()])
    verdict = replay.verdict()
    assert (verdict["differing"], verdict["skipped"]) == (3, 2)
    assert (verdict["success"], verdict["passed"], verdict["total"], verdict["failures"]) == (True, 1, 1, [])
