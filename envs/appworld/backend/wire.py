"""Messages between an environment and its world over one socket: the length in four bytes, then as many bytes of JSON.

Both sides import this module: the world in AppWorld's virtualenv, the environment in the user's Python. The environment
reads with a deadline, the world without.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct(">I")
MAX_BYTES = 32 * 1024 * 1024


def encode(value: Any) -> bytes:
    """A value as ASCII-only JSON, which keeps lone surrogates (a model can write them) as they are."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def frame(body: bytes) -> bytes:
    """A message, as it is sent.

    Raises:
        ValueError: The message is too long.
    """
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body):,} bytes; {MAX_BYTES:,} are allowed")
    return _LENGTH.pack(len(body)) + body


def send(connection: socket.socket, message: Any) -> None:
    """Sends one message."""
    connection.sendall(frame(encode(message)))


def receive(connection: socket.socket, deadline: float | None = None, max_bytes: int = MAX_BYTES) -> Any | None:
    """Reads the next message; None if the other side has hung up.

    Args:
        connection: The socket to read from.
        deadline: When the whole message must be here, however slowly it comes (time.monotonic seconds); None to wait forever.
        max_bytes: The longest message that is read.

    Raises:
        ValueError: The bytes are not a message, or the message is too long.
        TimeoutError: The message did not come in time.
        OSError: The connection broke.
    """
    head = _read(connection, _LENGTH.size, deadline)
    if head is None:
        return None
    (size,) = _LENGTH.unpack(head)
    if size > max_bytes:
        raise ValueError(f"a message of {size:,} bytes; {max_bytes:,} are allowed")
    body = _read(connection, size, deadline)
    if body is None:
        return None
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("a message nested too deeply") from error


def _read(connection: socket.socket, size: int, deadline: float | None) -> bytearray | None:
    data = bytearray(size)  # however small the pieces are in which it comes, it takes no more than this
    rest = memoryview(data)
    while rest:
        if deadline is not None:
            # After the deadline, bytes that are there are still read: they may have come in time while this process was delayed.
            connection.settimeout(max(0.0, deadline - time.monotonic()))
        try:
            count = connection.recv_into(rest)
        except BlockingIOError as error:
            raise TimeoutError("the time is over") from error
        if not count:
            return None
        rest = rest[count:]
    return data
