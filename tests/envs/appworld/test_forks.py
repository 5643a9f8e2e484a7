"""What is said to a forked process, and what happens when it does not answer as it should."""

import contextlib
import os
import shutil
import socket
import struct
import sys
from pathlib import Path

import pytest

from eh_gym.errors import WorkerCallError, WorkerDied, WorkerProtocolError, WorkerTimeout
from envs.appworld import forks
from envs.appworld.backend import link
from envs.appworld.forks import Fork

NO_PROCESS = 2**22 + 1  # more than any process id
CODE = {"code": "print(1)"}


class Zygote:
    def __init__(self):
        self.abandoned, self.ended = [], []

    def abandon(self, name):
        self.abandoned.append(name)

    def clear(self):
        self.ended += self.abandoned


@pytest.fixture
def pair():
    here, there = socket.socketpair()
    zygote = Zygote()
    yield Fork(zygote, None, here, "7", NO_PROCESS), there, zygote
    here.close()
    there.close()


def test_a_process_that_does_not_answer_in_time_is_ended(pair):
    fork, _, zygote = pair
    with pytest.raises(WorkerTimeout, match=r"no answer after 0\.2 s"):
        fork.ask(CODE, timeout_s=0.2)
    with pytest.raises(WorkerDied, match="was ended"):
        fork.ask(CODE, timeout_s=0.2)
    fork.end()
    assert zygote.ended == ["7"]


@pytest.mark.parametrize(
    ("sent", "error", "message"),
    [
        (b"\0\0", WorkerDied, "has gone away"),
        (struct.pack(">II", 2**31, 0), WorkerProtocolError, "2,147,483,648 and 0 bytes"),
        (link.frame({"error": "sorry"}), WorkerCallError, "sorry"),
    ],
)
def test_anything_but_a_message_ends_the_process(pair, sent, error, message):
    fork, there, zygote = pair
    there.sendall(sent)
    there.shutdown(socket.SHUT_WR)
    with pytest.raises(error, match=message):
        fork.ask(timeout_s=60)
    assert zygote.ended == ["7"]


def leave(zygote):
    pid = os.fork()
    if pid == 0:
        try:
            zygote._end()
            zygote._ready = False
            with contextlib.suppress(WorkerDied):
                zygote.start()
            zygote._end()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def told(zygote):
    """What a process says that has got the connection of another."""
    fork, other = zygote.fork({"task_id": "a_1"}), zygote.fork({})
    fork.give(other)
    return fork.ask(timeout_s=60)


@pytest.mark.parametrize(
    ("happens", "survives"),
    [(leave, True), (lambda zygote: shutil.rmtree(zygote._home.folder), False)],
    ids=["a copy of this process ends", "no folder"],
)
def test_a_zygote_keeps_its_folder_or_is_replaced(monkeypatch, tmp_path, happens, survives):
    fake, command = Path(__file__).with_name("fake_zygote.py"), forks.backend_command
    monkeypatch.setattr(forks, "backend_command", lambda python, backend: command(python, fake))
    zygote = forks.Zygote(Path(sys.executable), dict)
    zygote.start()
    first = zygote.pid
    happens(zygote)
    assert zygote.alive == survives
    assert told(zygote)["ready"]["instruction"] == "a_1"
    assert (zygote.pid == first) == survives
    zygote.close()
    assert not zygote._home.folder.exists()
    with pytest.raises(WorkerDied, match="was closed"):
        zygote.fork({"task_id": "a_1"})
