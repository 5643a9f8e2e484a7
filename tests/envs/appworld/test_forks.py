"""What is said to a forked process, and what happens when it does not answer as it should."""

import contextlib
import os
import shutil
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from eh_gym.errors import ConfigError, WorkerCallError, WorkerDied, WorkerProtocolError, WorkerTimeout
from envs.appworld import forks
from envs.appworld.backend import wire
from envs.appworld.forks import Fork


class Zygote:
    """Remembers who was ended."""

    def __init__(self):
        self.ended = []

    def end(self, name):
        self.ended.append(name)

    def abandon(self, name):
        self.ended.append(f"{name}, by the next fork")


@pytest.fixture
def pair():
    here, there = socket.socketpair()
    zygote = Zygote()
    yield Fork(zygote, here, "7", 12345), there, zygote
    here.close()
    there.close()


def answer(there, message):
    """Answers the next message, in a thread."""

    def work():
        wire.receive(there)
        wire.send(there, message)

    threading.Thread(target=work, daemon=True).start()


def test_an_answer_comes_back(pair):
    fork, there, zygote = pair
    answer(there, {"said": "\ud800 é"})
    assert fork.ask({"code": "print(1)"}, 60) == {"said": "\ud800 é"}
    assert zygote.ended == []


def test_silence_ends_the_process(pair):
    fork, _, zygote = pair
    with pytest.raises(WorkerTimeout, match=r"no answer after 0\.2 s"):
        fork.ask({"code": "while True: pass"}, 0.2)
    assert zygote.ended == ["7"]
    with pytest.raises(WorkerDied, match="was ended"):
        fork.ask({"code": "print(1)"}, 0.2)
    fork.end()
    assert zygote.ended == ["7"]


def test_a_process_that_does_not_read_is_ended(pair):
    fork, _, zygote = pair
    with pytest.raises(WorkerTimeout):
        fork.ask({"code": "x" * (4 << 20)}, 0.2)  # more than a socket holds
    assert zygote.ended == ["7"]


def test_asking_and_answering_share_one_deadline(pair, monkeypatch):
    fork, _, zygote = pair
    now, left = [100.0], []

    def frame(body):
        now[0] += 0.5
        return b""

    def receive(connection, timeout_s, max_bytes):
        left.append(timeout_s)
        raise TimeoutError

    monkeypatch.setattr(wire, "frame", frame)
    monkeypatch.setattr(wire, "receive", receive)
    monkeypatch.setattr(forks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(WorkerTimeout):
        fork.ask({"code": "print(1)"}, 0.8)
    assert left == [pytest.approx(0.3)]
    assert zygote.ended == ["7"]


@pytest.mark.parametrize(("sent", "comes"), [(b'{"said": 1}', True), (b'{"said": 1', False)])
def test_what_came_while_the_caller_was_held_up_is_taken_and_nothing_more_is_waited_for(pair, monkeypatch, sent, comes):
    """As when this process, or the whole machine, is stopped for a while."""
    fork, there, zygote = pair
    there.sendall(struct.pack(">I", 11) + sent)
    looks = iter([100.0])  # for the deadline
    monkeypatch.setattr(wire, "time", SimpleNamespace(monotonic=lambda: next(looks, 1000.0)))
    if comes:
        assert fork.ask(None, 60) == {"said": 1}
    else:
        with pytest.raises(WorkerTimeout):
            fork.ask(None, 60)
    assert fork._connection.gettimeout() == 0
    assert zygote.ended == ([] if comes else ["7"])


@pytest.mark.parametrize(
    ("sent", "error", "message"),
    [
        (b"", WorkerDied, "has gone away"),
        (b"\0\0", WorkerDied, "has gone away"),
        (struct.pack(">I", 2**31), WorkerProtocolError, "2,147,483,648 bytes"),
        (struct.pack(">I", 4) + b"nope", WorkerProtocolError, "sent"),
        (struct.pack(">I", 2) + b"[]", WorkerProtocolError, "sent"),
        (struct.pack(">I", 17) + b'{"error": "sorry"', WorkerProtocolError, "sent"),
        (struct.pack(">I", 18) + b'{"error": "sorry"}', WorkerCallError, "sorry"),
    ],
)
def test_anything_but_a_message_ends_the_process(pair, sent, error, message):
    fork, there, zygote = pair
    there.sendall(sent)
    there.shutdown(socket.SHUT_WR)
    with pytest.raises(error, match=message):
        fork.ask(None, 60)
    assert zygote.ended == ["7"]


def test_a_temporary_folder_too_deep_for_a_socket_is_refused(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(forks.tempfile, "gettempdir", lambda: str(deep))
    with pytest.raises(ConfigError, match="TMPDIR"):
        forks._folder()
    assert not list(deep.iterdir())


def test_folders_of_processes_that_are_gone_are_removed_wherever_they_ran(monkeypatch):
    with tempfile.TemporaryDirectory() as name:  # pytest's own are too deep for a socket
        folder = Path(name)
        monkeypatch.setattr(forks.tempfile, "gettempdir", lambda: name)
        monkeypatch.setattr(forks.os, "getpid", lambda: 999_999_999)  # as a process of another container is known here
        lives, lock = forks._folder()
        gone, ended = forks._folder()
        ended.close()
        (folder / "other").mkdir()
        mine, held = forks._folder()
        assert not gone.exists()
        assert {p.name for p in folder.iterdir()} == {lives.name, "other", mine.name}
        lock.close()
        held.close()


def leave(zygote):
    """What an ordinary exit of a forked copy of this process does."""
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


def lose(name):
    return lambda zygote: (zygote._folder / name).rename(zygote._folder / "elsewhere")


@pytest.mark.parametrize(
    ("happens", "survives"),
    [(leave, True), (lose("socket"), False), (lose("root"), False), (lambda z: shutil.rmtree(z._folder), False)],
    ids=["a copy of this process ends", "no socket", "no data", "no folder"],
)
def test_a_zygote_keeps_its_folder_or_is_replaced(monkeypatch, tmp_path, happens, survives):
    fake, command = Path(__file__).with_name("fake_zygote.py"), forks.backend_command
    monkeypatch.setattr(forks, "backend_command", lambda python, backend: command(python, fake))
    zygote = forks.Zygote(Path(sys.executable), tmp_path, "world", True)
    zygote.start()
    first = zygote.pid
    happens(zygote)
    assert zygote.alive == survives
    assert zygote.fork({"task_id": "a_1"}).ask(None, 60)["ready"]["instruction"] == "a_1"
    assert (zygote.pid == first) == survives
    zygote.close()
    assert not zygote._folder.exists()
    with pytest.raises(WorkerDied, match="was closed"):
        zygote.fork({"task_id": "a_1"})
