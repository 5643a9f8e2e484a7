"""The program inside a worker process: reads calls, has the backend answer them.

    python -s child.py FOLDER/backend.py

It needs only the standard library and is run by its path, because a backend's virtualenv does not have eh_gym.

The backend is a module with ``handle(method: str, params: dict) -> JSON value``. Its folder becomes the package
``eh_backend``, so that ``from .sibling import name`` works and no file in the folder shadows another module.

A frame is four bytes of magic, the length of the body as a big-endian 32-bit integer, and the body: a JSON object.
The child sends ``{"ready": true}`` or ``{"error": {...}}`` when the backend is loaded. Then each ``{"id", "method",
"params"}`` gets ``{"id", "result"}`` or ``{"id", "error"}``.
"""

import faulthandler
import importlib
import json
import os
import struct
import sys
import threading
import time
import traceback
import types

MAGIC = b"EHW\x01"
HEADER = struct.Struct(">4sI")
READY = {"ready": True}
MAX_FRAME_BYTES = 64 * 1024 * 1024
PACKAGE = "eh_backend"
_TOLD = 8000  # characters of an error's message, and of its traceback
_COMPACT = json.JSONEncoder(separators=(",", ":"))  # json.dumps would make a new one for each message
HELD_S = 600.0  # the longest that one C call may keep Python's lock


def encode(message: object) -> bytes:
    """A message as one frame, in ASCII-only JSON, which can carry lone surrogates."""
    body = _COMPACT.encode(message).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"the message takes {len(body):,} bytes; a frame holds at most {MAX_FRAME_BYTES:,}")
    return HEADER.pack(MAGIC, len(body)) + body


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, size: int, unread: bytearray) -> bytes:
    while len(unread) < size:
        chunk = os.read(fd, 1 << 16)  # usually brings all waiting calls
        if not chunk:
            raise EOFError
        unread += chunk
    data = bytes(unread[:size])
    del unread[:size]
    return data


def _describe(error: BaseException) -> dict[str, str]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        message = str(error)
    except Exception:
        message = "(its __str__ raised)"
    return {"type": type(error).__name__, "message": message[:_TOLD], "traceback": text[-_TOLD:]}


def _die_with(parent: int) -> None:
    """Ends this process when its parent is gone, even while the backend hangs.

    Linux's PR_SET_PDEATHSIG fires when the parent's *thread* ends, and workers are started from short-lived ones.

    This thread cannot run while C code, such as a regular expression, keeps Python's lock. Then faulthandler, which
    needs no lock, ends the process after HELD_S seconds.
    """
    while os.getppid() == parent:
        faulthandler.dump_traceback_later(HELD_S, exit=True, file=2)
        time.sleep(1.0)
    os._exit(1)


def _load(path: str) -> types.ModuleType:
    folder, name = os.path.split(os.path.abspath(path))
    package = types.ModuleType(PACKAGE)
    package.__path__ = [folder]
    sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.{os.path.splitext(name)[0]}")


def serve(backend_path: str) -> None:
    """Takes over stdin and stdout, loads the backend and answers until the parent goes away."""
    parent = os.getppid()
    requests, answers = os.dup(0), os.dup(1)  # not inheritable
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # so that no print comes between the frames, not even one from C code
    sys.stdout = sys.stderr
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()

    try:
        handle = _load(backend_path).handle
    except Exception as error:
        _write(answers, encode({"error": _describe(error)}))
        return
    _write(answers, encode(READY))

    unread = bytearray()
    while True:
        try:
            magic, size = HEADER.unpack(_read(requests, HEADER.size, unread))
            call = json.loads(_read(requests, size, unread).decode("ascii"))  # faster than from bytes
        except EOFError:
            return
        if magic != MAGIC:
            raise SystemExit("the parent sent something that is not a frame")
        try:
            frame = encode({"id": call["id"], "result": handle(call["method"], call["params"])})
        except (Exception, SystemExit) as error:  # an agent's code may call exit()
            frame = encode({"id": call["id"], "error": _describe(error)})
        _write(answers, frame)


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder
    try:
        serve(sys.argv[1])
    except BrokenPipeError:
        pass
    finally:
        sys.stderr.flush()
    os._exit(0)  # without waiting for the backend's threads
