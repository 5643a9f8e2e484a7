"""What the record of an episode's calls takes from a process that may forge all of it, on both sides of the connection."""

import contextlib
import json
import struct
import sys
from types import SimpleNamespace

import pytest

from envs.appworld import record
from envs.appworld.backend import calls, wire
from envs.appworld.record import MAX_EPISODE_BYTES, Record

CALL = {"method": "POST", "url": "/notes", "headers": {"authorization": "Bearer x"}, "body": "{}", "status": 200}


def held(frames):
    """The calls in a record's frames, as a judge reads them."""
    return [call for frame in frames for call in json.loads(frame[4:])["calls"]]


def test_a_judge_gets_the_calls_as_they_were_made():
    kept = Record(max_calls=3)
    steps = [[CALL, CALL | {"body": "\ud800\U0001f600"}], [], [CALL | {"status": None}], [CALL | {"status": 0}]]
    assert [kept.add(step) for step in steps] == [2, 0, 1, 1]
    assert held(kept.frames) == [call for step in steps for call in step]
    assert kept.size == sum(map(len, kept.frames))
    assert all(struct.unpack(">I", frame[:4]) == (len(frame) - 4,) for frame in kept.frames)


@pytest.mark.parametrize(
    "forged",
    [
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
        [CALL | {"status": "200"}],
        [CALL | {"status": 200.0}],
        [CALL | {"status": -1}],
        [CALL | {"status": 10**4299}],
        [CALL | {"body": "x" * wire.MAX_CALLS_BYTES}],
        [CALL | {"headers": {"\U0001f600" * (wire.MAX_CALLS_BYTES // 12): ""}}],
    ],
    ids=range(18),
)
def test_a_forged_record_is_refused_and_leaves_no_trace(forged):
    kept = Record(max_calls=3)
    kept.add([CALL])
    before = list(kept.frames)
    with pytest.raises(ValueError, match="call"):
        kept.add(forged)
    assert (kept.frames, kept.size) == (before, len(before[0]))


def test_forged_records_cost_no_more_memory_than_their_bound():
    """900 calls with 32 headers each, of characters that take 12 bytes in JSON, as long as they are taken."""
    step = [CALL | {"headers": {chr(0x1F300 + n) * 7: "" for n in range(32)}, "body": ""}] * 900
    kept, taken = Record(max_calls=1000), 0
    with contextlib.suppress(ValueError):
        while taken < 100:
            kept.add(step)
            taken += 1
    assert 10 <= taken < 100
    assert kept.size <= MAX_EPISODE_BYTES
    assert {name: type(value) for name, value in vars(kept).items()} == {"_max_calls": int, "frames": list, "size": int}
    assert sum(sys.getsizeof(frame) for frame in kept.frames) < MAX_EPISODE_BYTES + 10_000


def test_an_honest_episode_of_50_000_calls_fits():
    kept = Record(max_calls=1000)
    usual = CALL | {"headers": {"authorization": "Bearer " + "x" * 160}, "body": "x" * 200}
    for _ in range(50):
        assert kept.add([usual] * 1000) == 1000
    assert kept.room_bytes > 0


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


class EngineTimeout(Exception):
    pass


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setattr(calls, "_engine_timeout", lambda: EngineTimeout)
    return calls.Line(Transport(), max_calls=3)


def test_a_call_too_many_or_too_large_raises_and_the_record_stays_within_the_hosts_bounds(line, monkeypatch):
    monkeypatch.setattr(record, "MAX_EPISODE_BYTES", 2000)
    kept, refused = Record(max_calls=3), []
    for body in (b"x", b"y" * 1000, b"z" * 2000, b"", b""):
        line.record(kept.room_bytes)
        for _ in range(4):
            try:
                line.handle_request(request(body))
            except RuntimeError as error:
                refused.append(str(error))
        kept.add(line.recording)
    assert kept.size <= 2000
    assert line._transport.made == len(held(kept.frames)) == 3 + 1 + 0 + 3 + 3
    assert "3 API calls" in refused[0]
    assert "1,084 bytes" in refused[1]


@pytest.mark.parametrize(("error", "status"), [(OverflowError(), 0), (EngineTimeout(), None), (SystemExit(), None)])
def test_a_call_without_an_answer_says_whose_doing_that_was(line, error, status):
    """None, if the step's time ran out: the application did answer, and a judge's answer cannot differ from it."""
    line.record(10_000)
    line._transport.error = error
    with pytest.raises(type(error)):
        line.handle_request(request())
    assert [call["status"] for call in line.recording] == [status]
