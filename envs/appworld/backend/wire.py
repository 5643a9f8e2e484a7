"""Messages between an environment and its world, over one socket: a length in four bytes, then that much JSON.

Both sides import it: the world in AppWorld's virtualenv, the environment in its own. The environment
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
# Of an answer, which the agent's code may have forged: 32 MiB of empty lists take the reader 0.8 GB and 7 s to parse.
MAX_ANSWER_BYTES = 4 * 1024 * 1024


def send(connection: socket.socket, message: Any) -> None:
    """Sends one message, in ASCII-only JSON, which carries lone surrogates (a model can write them) through unharmed."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body):,} bytes; {MAX_BYTES:,} are allowed")
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket, timeout_s: float | None = None, max_bytes: int = MAX_BYTES) -> Any | None:
    """The next message; None when the other side has hung up.

    Args:
        connection: Where it comes from.
        timeout_s: Seconds for the whole of it, however slowly it drips; None to wait for ever.
        max_bytes: The longest that is read.

    Raises:
        ValueError: It is not a message.
        TimeoutError: The time is over.
        OSError: The connection broke.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
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


def _read(connection: socket.socket, size: int, deadline: float | None) -> bytes | None:
    parts = []
    while size:
        if deadline is not None:
            # After it, what is there is taken: where this process was held up itself, it may have been there in time.
            connection.settimeout(max(0.0, deadline - time.monotonic()))
        try:
            part = connection.recv(min(size, 1 << 20))
        except BlockingIOError as error:
            raise TimeoutError("the time is over") from error
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
