import subprocess
import sys
import threading
import time

import pytest

from eh_gym.errors import WorkerDied
from envs.appworld.ahead import Ahead


class World:
    def __init__(self, task_id):
        self.task_id, self.closed = task_id, False

    def close(self):
        self.closed = True


class Maker:
    """Makes worlds, one for each permit."""

    def __init__(self, permits=100):
        self.begun, self.made = [], []
        self.permits = threading.Semaphore(permits)

    def __call__(self, task_id):
        self.begun.append(task_id)
        self.permits.acquire()
        if task_id == "broken":
            raise WorkerDied("no world")
        self.made.append(World(task_id))
        return self.made[-1]


@pytest.fixture
def start():
    started = []

    def make(maker):
        started.append(Ahead(maker))
        return started[-1]

    yield make
    for ahead in started:
        ahead.stop()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_worlds_are_made_once_for_each_mention(start):
    maker = Maker()
    ahead = start(maker)
    assert ahead.take("a") is None
    ahead.prepare(["a", "b", "a"])
    until(lambda: len(maker.made) == 3)
    taken = [ahead.take("a"), ahead.take("a"), ahead.take("b")]
    assert [world.task_id for world in taken] == ["a", "a", "b"]
    assert len({id(world) for world in taken}) == 3
    assert ahead.take("a") is None


def test_worlds_that_are_not_mentioned_again_are_closed(start):
    maker = Maker()
    ahead = start(maker)
    ahead.prepare(["a", "a", "b"])
    until(lambda: len(maker.made) == 3)
    ahead.prepare(["a", "c"])
    until(lambda: len(maker.made) == 4)
    assert sorted(world.task_id for world in maker.made if world.closed) == ["a", "b"]


def test_a_world_that_is_being_made_is_waited_for(start):
    maker = Maker(permits=0)
    ahead = start(maker)
    ahead.prepare(["a"])
    until(lambda: maker.begun)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(ahead.take("a")))
    thread.start()
    maker.permits.release()
    thread.join(60)
    assert taken == maker.made
    assert maker.begun == ["a"]


def test_a_world_that_is_being_made_counts_when_it_is_asked_for_again(start):
    maker = Maker(permits=0)
    ahead = start(maker)
    ahead.prepare(["a", "b"])
    until(lambda: maker.begun)
    ahead.prepare(["a", "b"])
    maker.permits.release(5)
    until(lambda: len(maker.made) == 2)
    time.sleep(0.05)
    assert maker.begun == ["a", "b"]


def test_a_world_that_is_given_up_while_it_is_made_is_closed(start):
    maker = Maker(permits=0)
    ahead = start(maker)
    ahead.prepare(["a"])
    until(lambda: maker.begun)
    ahead.prepare([])
    maker.permits.release()
    until(lambda: maker.made and maker.made[0].closed)
    assert ahead.take("a") is None


def test_a_world_that_was_not_begun_is_left_to_whoever_opens_it(start):
    maker = Maker(permits=0)
    ahead = start(maker)
    ahead.prepare(["a", "b"])
    until(lambda: maker.begun)
    assert ahead.take("b") is None
    maker.permits.release(5)
    until(lambda: maker.made)
    time.sleep(0.05)
    assert maker.begun == ["a"]


def test_a_failure_ends_what_waits_for_it_and_later_worlds_are_made(start):
    maker = Maker(permits=0)
    ahead = start(maker)
    ahead.prepare(["broken"])
    until(lambda: maker.begun)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(ahead.take("broken")))
    thread.start()
    maker.permits.release(5)
    thread.join(60)
    assert taken == [None]
    ahead.prepare(["a"])
    until(lambda: maker.made)


def test_after_its_end_nothing_is_made(start):
    maker = Maker()
    ahead = start(maker)
    ahead.stop()
    ahead.prepare(["a"])
    assert ahead.take("a") is None
    assert maker.begun == []


def test_the_end_of_the_process_does_not_wait_for_all_worlds():
    code = """
import time
from envs.appworld.ahead import Ahead
Ahead(lambda task_id: time.sleep(0.01) or print(task_id, flush=True) or task_id).prepare(["a"] * 1000)
time.sleep(0.1)
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 0 < made.count("a") < 1000
