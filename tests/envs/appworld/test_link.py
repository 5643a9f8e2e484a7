"""What may cross between the two processes of a world, and what ends it."""

import socket
import struct
import sys
import traceback

import pytest

from envs.appworld.backend import link


class Apps(link.Code):
    def send(self, *frame):
        self.steps.send(*frame)

    def receive(self):
        return super().receive()[1]


@pytest.fixture
def ends():
    """The apps' end, the code's end for steps, and the environment's. `apps.code_calls` is the code's other end."""
    pairs = [socket.socketpair() for _ in range(3)]
    (steps, code), (calls, code_calls), (caller, environment) = pairs
    apps = Apps(steps, calls, caller)
    apps.code_calls = code_calls
    yield apps, code, environment
    for end in (end for pair in pairs for end in pair):
        end.close()


def test_neither_stream_gets_the_other_s_frames_or_waits_for_it(ends):
    apps, code, _ = ends
    apps.code_calls.sendall(link.frame({"call": 1}) * 100)
    for number in range(2):
        code.sendall(link.frame({"end": number}))
        seen = []
        while not seen or "call" in seen[-1]:
            seen.append(apps.receive()[0])
            apps.calls.send({"answer": 1})
        assert len(seen) <= 3
    assert link.receive(apps.code_calls)[0] == {"answer": 1}
    apps.code_calls.close()
    code.sendall(link.frame({"end": 2}))
    assert apps.receive()[0] == {"end": 2}


def test_frames_come_whole_however_they_are_cut(ends):
    apps, code, _ = ends
    data = link.frame({"a": "\ud83d"}, b"\0\xff") + link.frame({}) + link.frame({"b": 1}, b"x" * 5000)
    for start in range(0, len(data), 77):
        code.sendall(data[start : start + 77])
    assert [apps.receive() for _ in range(3)] == [({"a": "\ud83d"}, b"\0\xff"), ({}, b""), ({"b": 1}, b"x" * 5000)]


def test_an_answer_is_sent_before_anything_is_read(ends):
    apps, code, _ = ends
    code.sendall(link.frame({"first": 1}) + link.frame({"second": 2}))
    assert apps.receive()[0] == {"first": 1}
    apps.send({"answer": 1}, b"x")
    assert apps.receive()[0] == {"second": 2}
    assert link.receive(code) == ({"answer": 1}, b"x")


@pytest.mark.parametrize(
    ("sent", "error", "says"),
    [
        (struct.pack(">II", 2, link.MAX_BODY_BYTES + 1), ValueError, "a frame of 2 and 4,194,305 bytes"),
        (struct.pack(">II", link.MAX_HEAD_BYTES + 1, 0), ValueError, "a frame of 262,145"),
        (struct.pack(">II", 2, 0) + b"[]", ValueError, "another form"),
        (struct.pack(">II", 2, 0) + b"\xff\xff", ValueError, "decode"),
        (struct.pack(">II", 100_000, 0) + b"[" * 100_000, ValueError, "too deeply"),
        (b"\0\0", ConnectionError, "gone away"),
    ],
)
def test_anything_but_a_frame_is_an_error(ends, sent, error, says):
    apps, code, _ = ends
    code.sendall(sent)
    code.shutdown(socket.SHUT_WR)
    with pytest.raises(error, match=says):
        apps.receive()


def test_who_had_not_read_what_was_sent_is_told_from_who_had(ends):
    apps, code, _ = ends
    apps.send({"run": True})
    code.sendall(link.frame({}))
    apps.receive()
    code.close()
    if sys.platform == "linux":
        with pytest.raises(ConnectionResetError):
            apps.receive()


def test_the_apps_do_not_wait_for_the_code_when_nobody_waits_for_them(ends):
    apps, _, environment = ends
    environment.close()
    apps.send({}, b"x" * (64 << 20))  # more than a socket holds; nobody reads it
    with pytest.raises(ConnectionError, match="the environment has hung up"):
        apps.receive()


class Odd(ValueError):
    def __init__(self, one, two):
        super().__init__(one, two)

    def __str__(self):
        return "odd"


def raised(function):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        function()
    return caught.value


def chained():
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise Odd(1, object())  # noqa: B904 - as its context
    except Odd as error:
        raise RuntimeError("c", 2) from error


@pytest.mark.parametrize("function", [chained, lambda: 1 / 0, lambda: "".encode("no such"), lambda: "\ud83d".encode()])
def test_an_exception_looks_the_same_on_the_other_side(function):
    error = raised(function)
    again = link.rebuilt(link.described(error))

    def heads(shown):
        lines = "".join(traceback.TracebackException.from_exception(shown).format()).splitlines()
        return [line for line in lines if not line.startswith("  ")]

    assert heads(again) == heads(error)
    assert type(again).__mro__[1] is type(error)
