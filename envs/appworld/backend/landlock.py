"""Landlock: restricts the files that a world may read, and forbids connecting to or signalling other processes.

Landlock does not restrict stat(): a world can still see names, sizes and times of files that its user can reach.
"""

import os
import stat
import struct
from collections.abc import Iterable

from .libc import libc

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # ABI -> number of file rights it knows; ABI 6 and 7 are like 5
_BIND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
_BENEATH = 1


def restrict(readable: Iterable[str]) -> bool:
    """Lets this process open only these files and those below these folders, for reading. Needs no_new_privs.

    Paths that can't be opened are ignored. The restriction holds for the calling thread and everything that it starts,
    so call it while there is only one thread. Returns whether the kernel does so.
    """
    abi = libc("syscall", _CREATE, None, 0, 1)
    if abi <= 0:
        return False
    # struct landlock_ruleset_attr: rights to refuse unless a rule allows them
    handled = struct.pack("=Q", (1 << _FILE_RIGHTS[min(abi, 5)]) - 1)
    if abi >= 4:
        handled += struct.pack("=Q", _BIND_CONNECT_TCP)
    if abi >= 6:
        handled += struct.pack("=Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    rules = libc("syscall", _CREATE, handled, len(handled), 0)
    if rules < 0:
        return False
    try:
        for path in readable:
            _allow(rules, path)
        return libc("syscall", _RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(rules: int, path: str) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = _READ_FILE | (_READ_DIR if stat.S_ISDIR(os.fstat(folder).st_mode) else 0)
        libc("syscall", _ADD_RULE, rules, _BENEATH, struct.pack("=Qi", rights, folder), 0)
    finally:
        os.close(folder)
