import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from eh_gym.errors import ConfigError, WorkerDied, WorkerTimeout
from eh_gym.worker import WorkerPool, close_shared_pools, shared_pool


@pytest.fixture
def pool(make_backend):
    pool = WorkerPool(3, make_backend())
    yield pool
    pool.close()


def test_sessions_go_where_the_fewest_are(pool):
    assert pool.pids == []  # workers start when they are needed
    sessions = [pool.session() for _ in range(6)]
    pids = [session.call("pid") for session in sessions]
    assert pids[:3] == pids[3:]
    assert len({*pids}) == 3
    assert sessions[0].call("echo", {"x": 1}) == {"x": 1, "session": sessions[0].id}
    assert sessions[0].id != sessions[1].id
    sessions[1].close()
    sessions[1].close()  # counted once
    assert [pool.session().call("pid") for _ in range(2)] == [pids[1], pids[0]]


def test_a_dead_worker_is_replaced_at_the_next_use(make_backend):
    pool = WorkerPool(1, make_backend())
    first, neighbour = pool.session(), pool.session()
    with pytest.raises(WorkerTimeout):
        first.call("hang", timeout_s=0.3)
    assert not first.alive
    assert not neighbour.alive
    with pytest.raises(WorkerDied):
        neighbour.call("pid")
    fresh = pool.session()
    assert fresh.alive
    assert fresh.call("pid") in pool.pids
    with pytest.raises(WorkerDied):  # a session never moves to another worker silently
        neighbour.call("pid")
    pool.close()


def test_a_worker_that_cannot_start_leaves_no_load(make_backend):
    with pytest.raises(ConfigError, match="size=0"):
        WorkerPool(0, ["x"])
    pool = WorkerPool(1, [*make_backend()[:-1], "/no/such/backend.py"])
    with pytest.raises(Exception, match=r"could not be loaded.*backend"):
        pool.session()
    assert pool._slots[0].load == 0


def test_a_slow_start_does_not_hold_up_the_other_workers(make_backend, tmp_path):
    source = """
        import os, pathlib, time
        gate = pathlib.Path(__file__).parent / "gate"
        try:
            (gate / "first").touch(exist_ok=False)
            while not (gate / "open").exists():
                time.sleep(0.01)
        except FileExistsError:
            pass

        def handle(method, params):
            return os.getpid()
    """
    gate = tmp_path / "gate"
    gate.mkdir()
    pool = WorkerPool(2, make_backend(source))
    try:
        with ThreadPoolExecutor(1) as threads:
            slow = threads.submit(pool.session)
            deadline = time.monotonic() + 120
            while not (gate / "first").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            quick = pool.session().call("pid")
            assert not slow.done()
            (gate / "open").touch()
            assert slow.result(timeout=120).call("pid") != quick
    finally:
        (gate / "open").touch()
        pool.close()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_pool_forked_while_its_locks_are_held_begins_anew(pool, holds_in_a_fork):
    session = pool.session()
    pid = session.call("pid")
    held, go = threading.Event(), threading.Event()

    def hold():
        with pool._lock, pool._slots[0].starting:
            held.set()
            go.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(120)

    def check():
        assert [slot.load for slot in pool._slots] == [0, 0, 0]
        assert not session.alive
        session.close()
        assert pool.session().call("pid") != pid
        pool.close()

    assert holds_in_a_fork(check)
    go.set()
    thread.join()
    assert session.call("pid") == pid


def test_equal_settings_share_a_pool(make_backend):
    command = make_backend()
    assert shared_pool(1, command) is shared_pool(1, command)
    assert shared_pool(2, command) is not shared_pool(1, command)
    pid = shared_pool(1, command).session().call("pid")
    close_shared_pools()
    assert shared_pool(1, command).pids == []
    assert shared_pool(1, command).session().call("pid") != pid
    close_shared_pools()
