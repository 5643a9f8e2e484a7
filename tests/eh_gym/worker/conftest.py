"""Little real backends, written to a folder and served by this interpreter."""

import os
import signal
import sys
import textwrap

import pytest

from eh_gym.worker import Session, Worker, backend_command

ECHO = """
    import json, os, re, signal, struct, subprocess, sys, time

    def write_everywhere(data):
        for fd in range(3, 32):
            try:
                os.write(fd, data)
            except OSError:
                pass

    class Mute(Exception):
        def __str__(self):
            raise ValueError("no words")

    def handle(method, params):
        if method == "echo":
            return params
        if method == "add":
            return params["a"] + params["b"]
        if method == "pid":
            return os.getpid()
        if method == "hang":
            while True:
                time.sleep(0.01)
        if method == "sleep":
            time.sleep(params["s"])
            return None
        if method == "exit":
            os._exit(params.get("status", 7))
        if method == "sys_exit":
            sys.exit(5)
        if method == "abort":
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)
        if method == "print":
            print("a stray print")
            sys.stdout.flush()
            os.write(1, b"stray bytes on fd 1\\n")
            subprocess.run([sys.executable, "-c", "print('from a child')"])
            return "still fine"
        if method == "chatter":
            sys.stderr.write("x" * params["size"] + "\\nlast words\\n")
            return None
        if method == "garbage":
            return write_everywhere(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
        if method == "huge":
            return write_everywhere(b"EHW\\x01" + struct.pack(">I", 2**31))
        if method == "not_json":
            return write_everywhere(b"EHW\\x01" + struct.pack(">I", 3) + b"{a}")
        if method == "twice":
            body = json.dumps({"id": params["id"], "result": "early"}).encode()
            write_everywhere(b"EHW\\x01" + struct.pack(">I", len(body)) + body)
            return "late"
        if method == "close_stdout":
            os.close(1)
            sys.stdout.close()
            return "closed"
        if method == "hold":  # C code that never lets another thread run
            re.match(r"(a+)+$", "a" * 60 + "b")
        if method == "mute":
            raise Mute
        if method == "raise_many":
            raise ValueError("\\0" * params["size"])
        if method == "long":
            return "y" * params["size"]
        if method == "unserialisable":
            return {1, 2}
        if method == "stdin":
            return sys.stdin.read()
        if method == "spawn":
            return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
        raise KeyError(method)
"""


@pytest.fixture
def holds_in_a_fork():
    """holds_in_a_fork(check) -> whether it raises nothing in a forked copy, which is ended if it deadlocks."""

    def run(check):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(120)
            try:
                check()
            except BaseException:
                os._exit(1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return run


@pytest.fixture(autouse=True)
def patience():
    """A busy machine may need more than the minute that a call has by default."""
    with pytest.MonkeyPatch.context() as patch:  # its own: what a test patches is undone before its workers close
        for kind in (Session, Worker):
            patch.setattr(kind.call, "__defaults__", (None, 120.0))
        yield


@pytest.fixture
def make_backend(tmp_path):
    """make_backend(source) -> command of a worker that serves it."""
    count = iter(range(100))

    def make(source=ECHO):
        path = tmp_path / f"backend{next(count)}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return backend_command(sys.executable, path)

    return make


@pytest.fixture
def make_worker(make_backend):
    """make_worker(source) -> a started Worker, closed when the test is over."""
    workers = []

    def make(source=ECHO):
        workers.append(Worker(make_backend(source)))
        workers[-1].start()
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture
def worker(make_worker):
    return make_worker()
