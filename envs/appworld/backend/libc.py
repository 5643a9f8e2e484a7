"""Linux's own functions of the C library, which Python's `os` lacks."""

import ctypes
import functools
import sys


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.syscall.restype = ctypes.c_long
    return library


def libc(name: str, *arguments: object) -> int:
    """Calls a function; whole numbers go as longs. Returns its result, or -1 on other systems."""
    if sys.platform != "linux":
        return -1
    result: int = getattr(_library(), name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    return result
