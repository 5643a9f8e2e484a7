import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest
from processes import gone

from eh_gym.errors import (
    ConfigError,
    WorkerCallError,
    WorkerDied,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
)
from eh_gym.worker import Worker, backend_command, frames

FAKE = """
    import json, struct, sys, time
    def send(message):
        body = json.dumps(message).encode()
        sys.stdout.buffer.write(b"EHW\\x01" + struct.pack(">I", len(body)) + body)
        sys.stdout.buffer.flush()
"""


def fake(folder, script, **more):
    (folder / "fake.py").write_text(textwrap.dedent(FAKE) + script)
    return Worker([sys.executable, "-I", str(folder / "fake.py")], **more)


def test_answers_sixteen_threads_each_their_own(worker):
    def count(thread):
        return [worker.call("echo", {"value": [thread, i]})["value"] for i in range(50)]

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(count, range(16)))
    assert answers == [[[thread, i] for i in range(50)] for thread in range(16)]


@pytest.mark.parametrize(
    "text", ["", "naïve 🧭", "\ud800 lone surrogate", "\x00\x01", "line\nbreak", pytest.param("x" * 300_000, id="long")]
)
def test_carries_every_text_unharmed(worker, text):
    assert worker.call("echo", {"text": text})["text"] == text


def test_a_hanging_call_is_killed_at_its_deadline_with_the_worker_s_children(worker):
    pid, grandchild = worker.pid, worker.call("spawn")
    with pytest.raises(WorkerTimeout, match=r"0\.5 s .*'hang'"):
        worker.call("hang", timeout_s=0.5)
    assert gone(pid, grandchild)
    assert not worker.alive
    with pytest.raises(WorkerDied, match="WorkerTimeout"):
        worker.call("pid")


def test_a_worker_that_does_not_read_cannot_block_the_caller(tmp_path):
    with fake(tmp_path, "send({'ready': True}); time.sleep(600)") as worker:
        with pytest.raises(WorkerTimeout, match=r"0\.5 s .*'big'"):
            worker.call("big", {"text": "x" * 5_000_000}, timeout_s=0.5)
        assert gone(worker.pid)


@pytest.mark.parametrize(
    ("method", "how"),
    [("exit", "exited with status 7"), ("abort", "killed by signal SIGSEGV"), (None, "SIGKILL")],
    ids=["exit", "abort", "between calls"],
)
def test_a_crash_says_how_it_ended(worker, method, how):
    if method is None:
        os.kill(worker.pid, signal.SIGKILL)
        assert gone(worker.pid)
    with pytest.raises(WorkerDied, match=how):
        worker.call(method or "pid")
    assert not worker.alive


@pytest.mark.parametrize(
    ("method", "message"),
    [("garbage", "b'HTTP'"), ("huge", "2,147,483,648 bytes.*67,108,864"), ("not_json", "not JSON")],
)
def test_garbage_on_the_frame_stream_kills_the_worker(worker, method, message):
    pid = worker.pid
    with pytest.raises(WorkerProtocolError, match=message):
        worker.call(method)
    assert gone(pid)


def test_a_second_answer_is_never_taken_for_the_next_calls(worker):
    assert worker.call("twice", {"id": 1}) == "early"
    with pytest.raises(WorkerProtocolError, match=r"'late'.* to call 2 \('pid'\)"):
        worker.call("pid")


def test_stray_prints_go_to_stderr_and_not_between_the_frames(worker):
    assert worker.call("print") == "still fine"
    assert worker.call("add", {"a": 1, "b": 2}) == 3
    with pytest.raises(WorkerDied) as error:
        worker.call("exit")
    for words in ("a stray print", "stray bytes on fd 1", "from a child"):
        assert words in str(error.value)


def test_a_megabyte_on_stderr_never_blocks_and_its_tail_is_kept(worker):
    for _ in range(5):
        worker.call("chatter", {"size": 1_000_000})
    with pytest.raises(WorkerDied, match="last words"):
        worker.call("exit")
    assert len(worker.stderr) <= 64 * 1024


def test_a_raising_backend_is_reported_and_lives_on(worker):
    with pytest.raises(WorkerCallError, match="'nothing' raised KeyError: 'nothing'") as error:
        worker.call("nothing")
    assert "in handle" in str(error.value)  # the traceback
    for method, raised in (
        ("unserialisable", "not JSON serializable"),
        ("sys_exit", "'sys_exit' raised SystemExit: 5"),  # code that calls exit() does not end the worker
        ("mute", "'mute' raised Mute"),  # an exception whose text raises
    ):
        with pytest.raises(WorkerCallError, match=raised):
            worker.call(method)
    assert worker.call("stdin") == ""  # the backend cannot read the calls
    assert worker.call("close_stdout") == "closed"
    assert worker.call("add", {"a": 2, "b": 2}) == 4


def test_an_answer_or_call_longer_than_a_frame_is_an_error_and_the_worker_lives_on(worker):
    with pytest.raises(WorkerCallError, match=r"70,000,0\d\d bytes.*67,108,864"):
        worker.call("long", {"size": 70_000_000})
    with pytest.raises(WorkerCallError, match="'raise_many' raised ValueError: " + "\x00" * 50) as error:
        worker.call("raise_many", {"size": 70_000_000})
    assert len(str(error.value)) < 20_000
    with pytest.raises(WorkerCallError, match=r"'echo' was not sent.*67,108,864"):
        worker.call("echo", {"text": "x" * 70_000_000})
    with pytest.raises(WorkerCallError, match=r"'echo' was not sent.*JSON"):
        worker.call("echo", {"value": object()})
    assert len(worker.call("long", {"size": 9_000})) == 9_000


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("send({'hello': 1}); time.sleep(600)", WorkerProtocolError, "began with .*hello.*child.py"),
        ("print('Welcome to the shell!'); sys.stdout.flush(); time.sleep(600)", WorkerProtocolError, "no frame"),
        ("send([1])", WorkerProtocolError, "a list"),
        ("sys.exit('no such module')", WorkerDied, r"status 1\n.*\nno such module"),
    ],
)
def test_a_start_that_fails_is_reported_by_its_cause(tmp_path, script, error, message):
    worker = fake(tmp_path, script, start_timeout_s=120)
    with pytest.raises(error, match=message):
        worker.start()
    assert not worker.alive
    assert gone(worker.pid)


def test_a_start_that_takes_too_long_says_what_it_waited_for(tmp_path):
    worker = fake(tmp_path, "time.sleep(600)", start_timeout_s=0.7)
    with pytest.raises(WorkerTimeout, match=r"0\.7 s for the backend to load"):
        worker.start()
    assert not worker.alive
    assert gone(worker.pid)


def test_what_cannot_be_started_or_imported_is_named(tmp_path, make_worker):
    with pytest.raises(WorkerDied, match="could not be started"):
        Worker([str(tmp_path / "no-python")]).start()
    with pytest.raises(WorkerCallError, match=r"ModuleNotFoundError.*no_such_package"):
        make_worker("import no_such_package")


def test_the_backend_finds_its_siblings_without_shadowing_other_modules(tmp_path):
    (tmp_path / "json.py").write_text("NAME = 'sibling'")
    (tmp_path / "back.py").write_text(
        "import json\nfrom .json import NAME\ndef handle(method, params): return [NAME, json.loads('[1]')]"
    )
    with Worker(backend_command(sys.executable, tmp_path / "back.py")) as worker:
        assert worker.call("x") == ["sibling", [1]]


@contextmanager
def calling(worker, method, params=None, timeout_s=120):
    """Another thread's call, which is under way."""
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(worker.call, method, params, timeout_s)
        while not worker._lock.locked():
            time.sleep(0.001)
        yield call


@pytest.mark.parametrize("end", [lambda worker: worker.kill(), lambda worker: worker.close(timeout_s=0.2)])
def test_a_hanging_call_ends_with_its_worker(worker, end):
    with calling(worker, "hang") as call:
        end(worker)
        with pytest.raises(WorkerDied):
            call.result(timeout=120)
    assert gone(worker.pid)


def test_closing_lets_a_call_end(worker):
    with calling(worker, "sleep", {"s": 0.5}) as call:
        worker.close(timeout_s=120)
        assert call.result(timeout=120) is None
    worker.close()
    assert gone(worker.pid)
    with pytest.raises(WorkerDied, match="it was closed"):
        worker.call("pid")


def test_a_forgotten_worker_ends(make_backend):
    worker = Worker(make_backend())
    worker.start()
    pid = worker.pid
    del worker
    assert gone(pid)


def set_clock(monkeypatch, clock):
    for module in ("process", "frames"):
        monkeypatch.setattr(f"eh_gym.worker.{module}.time", clock)


def test_waiting_for_ones_turn_does_not_count_against_the_deadline(worker, monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    class Turn:
        def __enter__(self):
            clock.now += 100

        def __exit__(self, *_):
            pass

    clock = Clock()
    set_clock(monkeypatch, clock)
    monkeypatch.setattr(worker, "_lock", Turn())
    assert worker.call("sleep", {"s": 0.1}, timeout_s=60) is None


def test_a_call_that_waits_for_one_that_fails_is_not_blamed_and_not_sent(worker):
    with calling(worker, "hang", {}, 1.0) as failing:
        with pytest.raises(WorkerDied, match="the worker cannot be called: "):
            worker.call("spawn", {}, 120)
        with pytest.raises(WorkerTimeout, match=r"1 s .*'hang'"):
            failing.result()


def gathered(worker, calls):
    """Futures of a call that is under way, and of calls (method, parameters, timeout_s) that wait meanwhile, in this
    order."""
    threads, futures = ThreadPoolExecutor(len(calls) + 1), []
    with worker._lock:
        for waiting, call in enumerate([("pid", {}, 120), *calls]):
            futures.append(threads.submit(worker.call, *call))
            while worker._leader is None or len(worker._waiting) != waiting:
                time.sleep(0.001)
    threads.shutdown(wait=False)
    return futures


def test_calls_that_go_together_have_each_their_answer_and_their_deadline(worker, monkeypatch):
    sent, send = [], frames.Frames.send
    monkeypatch.setattr(frames.Frames, "send", lambda self, calls: (sent.append(calls), send(self, calls)))
    long = [("echo", {"text": f"{i}" * 300_000}, 120) for i in range(4)]  # the pipes hold 64 KiB
    futures = gathered(worker, [("sleep", {"s": 0.2}, 2.0)] * 14 + long)
    assert [future.result() for future in futures] == [worker.pid, *[None] * 14, *(echo for _, echo, _ in long)]
    assert len(sent) == 2


@pytest.mark.parametrize(
    ("method", "timeout_s", "error"), [("hang", 1.0, WorkerTimeout), ("exit", 120, WorkerDied)], ids=["hang", "exit"]
)
def test_of_calls_that_go_together_one_that_fails_is_blamed_alone(worker, method, timeout_s, error):
    futures = gathered(worker, [("add", {"a": 1, "b": 2}, 120), (method, {}, timeout_s), ("pid", {}, 120)])
    assert futures[1].result() == 3
    with pytest.raises(error, match=f"'{method}'|status 7") as blamed:
        futures[2].result()
    with pytest.raises(WorkerDied, match=r"^the worker cannot be called: ") as uncalled:
        futures[3].result()
    assert getattr(blamed.value, "called", True)
    assert not pickle.loads(pickle.dumps(uncalled.value)).called  # Ray's actors pass it on so


def test_a_caller_that_is_interrupted_does_not_hold_up_the_others(worker):
    def call_when_another_waits():
        while not worker._waiting or worker._waiting[0] is worker._leader:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        return worker.call("pid", {}, 120)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with ThreadPoolExecutor(2) as threads:
        threads.submit(worker.call, "sleep", {"s": 1.0}, 120)
        while not worker._leader:
            time.sleep(0.001)
        later = threads.submit(call_when_another_waits)
        with pytest.raises(KeyboardInterrupt):
            worker.call("pid", {}, 120)
        signal.signal(signal.SIGINT, before)
        assert later.result() == worker.pid


def test_an_answer_that_came_while_the_caller_was_held_up_is_taken(worker, monkeypatch):

    class Clock:
        asked = 0

        def monotonic(self):
            self.asked += 1
            if self.asked == 1:  # for the deadline
                return 0.0
            answer = select.poll()
            answer.register(worker._process.stdout.fileno(), select.POLLIN)
            assert answer.poll(120_000)
            return 100.0

    set_clock(monkeypatch, Clock())
    assert worker.call("add", {"a": 1, "b": 2}, timeout_s=10) == 3


PARENT = """
    import sys, time
    from eh_gym.worker import Worker
    worker = Worker(sys.argv[1:])
    worker.start()
    print(worker.call("pid", timeout_s=120), flush=True)
    {then}
"""


def kill_parent(command, then, lines=1):
    """Kills a process that has a worker and does `then`; returns the numbers that it printed, the worker's id first."""
    code = textwrap.dedent(PARENT.format(then=then))
    parent = subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.PIPE)
    printed = [int(parent.stdout.readline()) for _ in range(lines)]
    time.sleep(0.3)  # for a call to be under way, where the machine is quick enough
    parent.kill()
    parent.wait()
    parent.stdout.close()
    return printed


@pytest.mark.parametrize("then", ["time.sleep(600)", "worker.call('hang', timeout_s=600)"], ids=["idle", "hanging"])
def test_the_worker_goes_when_its_parent_is_killed(make_backend, then):
    assert gone(*kill_parent(make_backend(), then))


def test_a_forked_copy_of_the_parent_does_not_keep_it_alive(make_backend):
    fork = "import os; copy = os.fork(); print(copy, flush=True) if copy else None; time.sleep(600)"
    pid, copy = kill_parent(make_backend(), fork, lines=2)
    try:
        assert gone(pid)
    finally:
        os.kill(copy, signal.SIGKILL)


def test_wrong_arguments_are_refused_by_their_name():
    with pytest.raises(ConfigError, match="start_timeout_s must be"):
        Worker(["x"], start_timeout_s=0)
    for command in ("python backend.py", ()):
        with pytest.raises(ConfigError, match="command must be"):
            Worker(command)
    with pytest.raises(WorkerError, match="not started"):
        Worker(["x"]).call("y")


def test_workers_agree_on_the_order_of_a_set_and_see_no_python_settings(make_worker, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/no/such/folder")
    monkeypatch.setenv("PYTHONHASHSEED", "123")
    source = """
        import sys
        def handle(method, params):
            return [str({"first", "economy", "business", "a", "b", "c"}), sys.path]
    """
    answers = [make_worker(source).call("x") for _ in range(4)]
    assert answers.count(answers[0]) == 4
    assert not [path for path in answers[0][1] if "no/such" in path or path.endswith("worker")]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_copy_forked_during_a_call_does_not_deadlock_and_may_neither_call_nor_kill_it(worker, holds_in_a_fork):
    def check():
        for use in (worker.start, lambda: worker.call("pid")):
            with pytest.raises(WorkerDied, match="belongs to process"):
                use()
        worker.close()
        worker.kill()

    with calling(worker, "sleep", {"s": 1.0}) as call:
        assert holds_in_a_fork(check)
        assert call.result() is None


def test_c_code_that_keeps_pythons_lock_does_not_outlive_the_parent_for_long(make_backend, tmp_path):
    python, _, child, backend = make_backend()
    short = tmp_path / "short.py"
    short.write_text(
        "import runpy, sys\nserve = runpy.run_path(sys.argv[1])['serve']\nserve.__globals__['HELD_S'] = "
        "2.0\nserve(sys.argv[2])\n"
    )
    [pid] = kill_parent([python, str(short), child, backend], "worker.call('hold', timeout_s=600)")
    try:
        assert gone(pid)
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
