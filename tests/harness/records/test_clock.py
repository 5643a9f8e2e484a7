import pytest

from harness.records import clock
from harness.records.clock import Clock


@pytest.fixture
def now(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    return now


def test_it_stands_still_until_it_starts_and_while_it_is_stopped(now):
    clock, metrics = Clock(), {}
    now[0] += 50  # the evaluation before training
    clock.start()
    with clock.timed("time/update_s", metrics):
        now[0] += 3
    with clock.stopped("time/evaluation_s", metrics):
        now[0] += 20
    now[0] += 1
    assert metrics == {"time/update_s": 3.0, "time/evaluation_s": 20.0}
    assert clock.seconds == 4.0


def test_a_resumed_run_goes_on_from_its_seconds_and_tokens(now):
    first = Clock()
    first.start()
    now[0] += 5
    assert first.count(10.0) == {"tokens/total": 10.0, "time/total_s": 5.0}
    second = Clock(first.state_dict())
    now[0] += 60  # until it is resumed
    second.start()
    now[0] += 2
    assert second.count(1.0) == {"tokens/total": 11.0, "time/total_s": 7.0}
