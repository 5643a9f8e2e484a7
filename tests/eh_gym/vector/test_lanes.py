import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import pytest
from gymnasium.error import ClosedEnvironmentError

from eh_gym.vector.lanes import Lanes

WORKERS = [0, 1, 4]


@pytest.fixture(params=WORKERS)
def lanes(request):
    lanes = Lanes(3, request.param)
    yield lanes
    lanes.close()


def test_calls_of_one_lane_run_in_order_and_never_two_at_once():
    lanes = Lanes(4, 8)
    running, order, overlaps = [0] * 4, [[] for _ in range(4)], []

    def call(lane, number):
        running[lane] += 1
        if running[lane] > 1:
            overlaps.append((lane, number))
        time.sleep(0.0005)
        order[lane].append(number)
        running[lane] -= 1
        return number

    futures = [lanes.submit(lane, call, lane, number) for number in range(30) for lane in range(4)]
    assert [f.result(60) for f in futures] == [number for number in range(30) for _ in range(4)]
    assert order == [list(range(30))] * 4
    assert overlaps == []
    lanes.close()


def test_a_full_lane_does_not_keep_the_only_thread():
    lanes = Lanes(2, 1)
    done, go = [], threading.Event()
    first = lanes.submit(0, go.wait, 60)
    others = [lanes.submit(0, done.append, "a1"), lanes.submit(0, done.append, "a2"), lanes.submit(1, done.append, "b")]
    go.set()
    for future in [first, *others]:
        future.result(60)
    assert done == ["b", "a1", "a2"]
    lanes.close()


def test_even_an_exit_in_a_call_is_caught(lanes):
    def leave():
        raise SystemExit(3)

    assert isinstance(lanes.submit(0, leave).exception(60), SystemExit)
    assert lanes.submit(0, int, "7").result(60) == 7


@pytest.mark.parametrize("max_workers", [1, 4])
def test_a_callback_may_submit_to_its_own_lane(max_workers):
    """As a rollout does: the answer to one step starts the next one."""
    lanes = Lanes(1, max_workers)
    steps, finished = [], threading.Event()

    def again(future):
        steps.append(future.result())
        if len(steps) < 2000:  # deep enough to overflow the stack if each ran inside the one before
            lanes.submit(0, int, len(steps)).add_done_callback(again)
        else:
            finished.set()

    lanes.submit(0, int, 0).add_done_callback(again)
    assert finished.wait(60)
    assert steps == list(range(2000))
    lanes.close()


def test_whoever_waited_for_a_future_finds_the_lane_answered(lanes):
    for _ in range(300):
        lanes.submit(0, int).result(60)
        assert lanes.unanswered(0) == 0


def test_a_cancelled_call_is_skipped():
    lanes = Lanes(1, 1)
    go, ran = threading.Event(), []
    first = lanes.submit(0, go.wait, 60)
    second, third = lanes.submit(0, ran.append, 2), lanes.submit(0, ran.append, 3)
    assert second.cancel()
    go.set()
    first.result(60)
    third.result(60)
    assert ran == [3]
    assert lanes.unanswered(0) == 0
    lanes.close()


def test_close_waits_for_the_running_call_and_cancels_the_rest():
    lanes = Lanes(1, 1)
    started, go, ended = threading.Event(), threading.Event(), []

    def slow():
        started.set()
        assert go.wait(60)
        ended.append("slow")

    running, waiting = lanes.submit(0, slow), lanes.submit(0, ended.append, "waiting")
    assert started.wait(60)
    closer = threading.Thread(target=lambda: (lanes.close(), ended.append("closed")))
    closer.start()
    with pytest.raises(CancelledError):
        waiting.result(60)
    assert ended == []
    go.set()
    closer.join(60)
    assert running.done()
    assert ended == ["slow", "closed"]


def test_a_program_that_ends_without_waiting_closes_them_at_exit():
    """The interpreter waits for the pool before the functions of atexit, and from then on the pool takes no calls."""
    program = """
import atexit, time
from eh_gym.vector.lanes import Lanes
lanes = Lanes(1, 2)
atexit.register(lanes.close)
atexit.register(lambda: print(lanes.submit(0, abs, -3).result()))
for second in (0.1, 0, 0):
    lanes.submit(0, time.sleep, second)
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30).stdout == "3\n"


def test_a_closed_lane_takes_no_calls(lanes):
    lanes.close()
    with pytest.raises(ClosedEnvironmentError, match="closed"):
        lanes.submit(0, int)
