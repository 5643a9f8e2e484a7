"""Messages between the processes of a world: frames, and the apps' exceptions.

A frame is the sizes of its head and body, the head as JSON, and the body as bytes. The agent's code may send anything,
so the apps' process uses `Stream`, which bounds the sizes and never blocks on the code. The environment imports this
module in the user's Python.
"""

import json
import select
import socket
import struct
import sys
import time
from typing import Any

Frame = tuple[dict[str, Any], bytes]

MAX_BYTES = 256 << 20  # of a frame's head and of its body, in `receive`
MAX_HEAD_BYTES, MAX_BODY_BYTES = 256 << 10, 4 << 20  # in `Stream`
MAX_CALL_BYTES = 256 << 10  # of the body of an API call
_SIZES = struct.Struct(">II")
_PIECE_BYTES = 64 << 10
_LONGEST_TEXT = 20_000  # characters of an exception's text


def frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    return _SIZES.pack(len(text), len(body)) + text + body


def receive(connection: socket.socket, deadline: float | None = None) -> Frame | None:
    """Waits for the next frame. Returns None if the other side has hung up.

    The whole frame must arrive by `deadline` (time.monotonic seconds), or TimeoutError is raised. None waits forever.
    ValueError is raised for anything but a frame.
    """
    sizes = _read(connection, _SIZES.size, deadline)
    if sizes is None:
        return None
    head, body = _checked(sizes, MAX_BYTES, MAX_BYTES)
    data = _read(connection, head + body, deadline)
    return None if data is None else (_parsed(data[:head]), bytes(data[head:]))


def give(connection: socket.socket, other: socket.socket) -> None:
    socket.send_fds(connection, [b"\0"], [other.fileno()])
    other.close()


def take(connection: socket.socket) -> socket.socket:
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        raise ConnectionError("the other side has hung up")
    return socket.socket(fileno=descriptors[0])


def _read(connection: socket.socket, size: int, deadline: float | None) -> bytearray | None:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        if deadline is not None:
            # Bytes that came in time are read even after the deadline.
            connection.settimeout(max(0.0, deadline - time.monotonic()))
        try:
            count = connection.recv_into(rest)
        except BlockingIOError as error:
            raise TimeoutError("the time is over") from error
        if not count:
            return None
        rest = rest[count:]
    return data


def _checked(data: bytearray, max_head: int, max_body: int) -> tuple[int, int]:
    head, body = _SIZES.unpack_from(data)
    if head > max_head or body > max_body:
        raise ValueError(f"a frame of {head:,} and {body:,} bytes")
    return head, body


def _parsed(text: bytearray) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except RecursionError as error:
        raise ValueError("a head nested too deeply") from error
    if not isinstance(head, dict):
        raise ValueError("a head of another form")
    return head


class Stream:
    """The apps' end of a connection to the agent's code. It is read only when everything is sent."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._incoming, self._outgoing = bytearray(), memoryview(b"")

    @property
    def event(self) -> int:
        return select.POLLOUT if self._outgoing else select.POLLIN

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        self._outgoing = memoryview(bytes(self._outgoing) + frame(head, body))

    def move(self) -> None:
        if self._outgoing:
            try:
                self._outgoing = self._outgoing[self.connection.send(self._outgoing) :]
            except BrokenPipeError as error:
                raise ConnectionResetError("it has gone away") from error
        else:
            piece = self.connection.recv(_PIECE_BYTES)
            if not piece:
                raise ConnectionError("it has gone away")
            self._incoming += piece

    def taken(self) -> Frame | None:
        data = self._incoming
        if self._outgoing or len(data) < _SIZES.size:
            return None
        head, body = _checked(data, MAX_HEAD_BYTES, MAX_BODY_BYTES)
        start, end = _SIZES.size + head, _SIZES.size + head + body
        if len(data) < end:
            return None
        received = _parsed(data[_SIZES.size : start]), bytes(data[start:end])
        del data[:end]
        return received


class Code:
    """The code's process, with a stream for its steps and one for its calls, so that neither gets the other's frames.

    If the environment, which is the `caller`, hangs up, waiting ends with an error.
    """

    def __init__(self, steps: socket.socket, calls: socket.socket, caller: socket.socket) -> None:
        self.steps, self.calls, self._caller = Stream(steps), Stream(calls), caller

    def receive(self) -> tuple[Stream, Frame]:
        """Sends the queued frames of both streams, and waits for the next frame of either.

        If both have one, it is that of `calls`: a call that came before the end of a step belongs to that step. If the
        code closes `calls`, it can only make no more calls.

        Raises:
            OSError: The code's process has gone away: a ConnectionResetError if it had not read everything.
            ValueError: It has sent something other than a frame.
        """
        while True:
            for stream in (self.calls, self.steps):
                if (received := stream.taken()) is not None:
                    return stream, received
            poll = select.poll()
            poll.register(self._caller, select.POLLIN)
            for stream in (self.steps, self.calls):
                if stream.connection.fileno() >= 0:
                    poll.register(stream.connection, stream.event)
            ready = {fd for fd, _ in poll.poll()}
            if self._caller.fileno() in ready:
                raise ConnectionError("the environment has hung up")
            if self.steps.connection.fileno() in ready:
                self.steps.move()
            if self.calls.connection.fileno() in ready:
                try:
                    self.calls.move()
                except OSError:
                    self.calls.connection.close()


def described(error: BaseException | None, chain: int = 8) -> dict[str, Any] | None:
    if error is None or not chain:
        return None
    text = str(error)[:_LONGEST_TEXT]
    return {
        "args": list(error.args) if all(type(value) in (int, float, bool) for value in error.args) else [text],
        "types": [[kind.__module__, kind.__qualname__] for kind in type(error).__mro__],
        "text": text,
        "cause": described(error.__cause__, chain - 1),
        "context": None if error.__suppress_context__ else described(error.__context__, chain - 1),
    }


def rebuilt(told: dict[str, Any]) -> Exception:
    known: type[Exception] = next(filter(None, (_known(*names) for names in told["types"])))
    module, name = told["types"][0]
    text: str = told["text"]
    parts = {"__module__": module, "__qualname__": name, "__init__": lambda *_: None, "__str__": lambda _: text}
    error: Exception = type(name, (known,), parts)(*told["args"])
    try:
        raise error  # gives it a traceback, whose heading is shown
    except Exception:
        pass
    error.__context__ = rebuilt(told["context"]) if told["context"] else None
    if told["cause"]:
        error.__cause__ = rebuilt(told["cause"])
    return error


def _known(module: str, name: str) -> type[Exception] | None:
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else None
