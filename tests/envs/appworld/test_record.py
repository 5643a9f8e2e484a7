"""What the record of an episode's calls takes from a process that may forge all of it, on both sides of the connection."""

import signal
import sys
from types import SimpleNamespace

import pytest

from envs.appworld import record
from envs.appworld.backend import calls, wire
from envs.appworld.record import MAX_EPISODE_BYTES, Record

CALL = {"method": "POST", "url": "/notes", "headers": {"authorization": "Bearer x"}, "body": "{}", "status": 200}


def test_the_record_is_what_came():
    kept = Record()
    steps = [[CALL, CALL | {"body": "\ud800\U0001f600"}], [], [CALL | {"status": 0}]]
    for step in steps:
        kept.add(wire.encode(step))
    assert kept.steps == [wire.encode(step) for step in steps if step]
    assert kept.calls == [call for step in steps for call in step]
    assert kept.size == sum(map(len, kept.steps))


@pytest.mark.parametrize(
    "forged",
    [
        None,
        5,
        {"calls": []},
        [CALL, 5],
        [CALL] * 4,
        [{name: value for name, value in CALL.items() if name != "body"}],
        [CALL | {"more": 1}],
        [CALL | {"headers": ["a", "b"]}],
        [CALL | {"headers": {"a": 1}}],
        [CALL | {"headers": {str(n): "" for n in range(33)}}],
        [CALL | {"body": None}],
        [CALL | {"url": ["/"] * 1000}],
        [CALL | {"status": True}],
        [CALL | {"status": None}],
        [CALL | {"status": "200"}],
        [CALL | {"status": 200.0}],
        [CALL | {"status": -1}],
        [CALL | {"status": 10**4299}],
    ],
    ids=range(18),
)
def test_a_judge_refuses_calls_that_no_world_has_recorded(forged):
    assert calls.checked([CALL] * 3, 3) == [CALL] * 3
    with pytest.raises(ValueError, match="API calls"):
        calls.checked(forged, 3)


def test_a_record_takes_no_more_memory_than_its_bound():
    kept, taken = Record(), 0
    while kept.room_bytes and taken < 100:
        kept.add(b" " * kept.longest_bytes)
        taken += 1
    assert 10 <= taken < 100
    assert sum(map(sys.getsizeof, kept.steps)) < MAX_EPISODE_BYTES + 10_000


class Transport:
    """Answers 200, or raises what it was given."""

    def __init__(self):
        self.made, self.error = 0, None

    def handle_request(self, request):
        self.made += 1
        if self.error is not None:
            raise self.error
        return SimpleNamespace(status_code=200)


def request(body=b"{}"):
    return SimpleNamespace(
        method="POST", url=SimpleNamespace(raw_path=b"/notes"), headers={"host": "x", "a": "b"}, read=lambda: body
    )


@pytest.fixture
def line():
    return calls.Line(Transport(), max_calls=3)


def test_a_call_too_many_or_too_large_raises_and_the_record_stays_within_the_hosts_bounds(line, monkeypatch):
    monkeypatch.setattr(record, "MAX_EPISODE_BYTES", 2000)
    kept, refused = Record(), []
    for body in (b"x", b"y" * 1000, b"z" * 2000, b"", b""):
        line.record(kept.room_bytes)
        for _ in range(4):
            try:
                line.handle_request(request(body))
            except RuntimeError as error:
                refused.append(str(error))
        step = wire.encode(line.recording)
        assert len(step) <= kept.longest_bytes
        kept.add(step)
    assert kept.size <= 2000 + 64
    assert line._transport.made == len(kept.calls) == 3 + 1 + 0 + 3 + 3
    assert "3 API calls" in refused[0]
    assert "1,081 bytes" in refused[1]


@pytest.mark.parametrize("moment", ["before the application", "in the application", "after the application"])
def test_a_timeout_in_a_call_comes_when_the_call_is_made_and_recorded(line, monkeypatch, moment):
    """Else a write could be made in the agent's world alone, or in the judge's alone."""

    class Timeout(Exception):
        pass

    def alarm(*_):
        raise Timeout

    def at(here, function):
        def work(*arguments):
            if moment == here:
                signal.raise_signal(signal.SIGALRM)
            return function(*arguments)

        return work

    monkeypatch.setattr(line, "_entry", at("before the application", line._entry))
    monkeypatch.setattr(line._transport, "handle_request", at("in the application", line._transport.handle_request))
    monkeypatch.setattr(calls.random, "setstate", at("after the application", calls.random.setstate))
    line.record(10_000)
    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with pytest.raises(Timeout):
            line.handle_request(request())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert line._transport.made == 1
    assert [call["status"] for call in line.recording] == [200]
