"""Confines a world's process: it may compute, and use the descriptors that it already has.

There are six layers: "limits" (rlimits), "user" (another uid, if the host runs as root), "network" and "mounts"
(namespaces), "system calls" (a seccomp filter) and "files" (Landlock, or no opening of files). A layer that the host
lacks is skipped. macOS has only the limits and the uid. The parent enforces the deadline (turns.py).
"""

import contextlib
import ctypes
import math
import os
import resource
import socket
import struct
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from . import cgroups, landlock, seccomp
from .libc import libc

# The worlds' uids and gids, above those that distributions assign and below 65534 (nobody).
FIRST_UID, _UIDS_OF_ZYGOTE, _ZYGOTES = 61000, 256, 17

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x08000000, 0x10000000, 0x40000000
_CLONE_NEWPID = 0x20000000
_MOUNT_SETATTR = 442  # the same number on every architecture
_SET_DUMPABLE, _SET_NO_NEW_PRIVS, _CAP_AMBIENT = 4, 38, 47
_NICE = 5
_FREE_THREADS = 4096  # beyond those at the start, if only the user's total can be limited
_PROJECT = os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))

# Set by isolate_host.
_network = False
_first_slot = 0
_claim: socket.socket | None = None  # keeps other zygotes from using the same slots
_threads_of_user = 0
_pids = -1  # a descriptor of the zygote's pid namespace


@dataclass(frozen=True)
class Limits:
    """The resources that a world may use."""

    memory_bytes: int = 2 << 30  # address space beyond what the process has when it is confined
    cpu_s: int = 600  # of all threads in the whole episode; then the kernel kills the process
    file_bytes: int = 0  # the largest file that may be written
    open_files: int = 128
    threads: int = 64  # where the kernel can count them per world; elsewhere the user's total is limited


def isolate_host() -> None:
    """Prepares the zygote. Call it once in the main thread, before that thread forks.

    As root, it claims uids and makes the network and IPC namespaces that every world inherits. An ordinary user needs a
    user namespace for this, which the kernel refuses to a process with several threads. Each world then makes its own
    in ``confine``.
    """
    global _first_slot, _network, _pids, _threads_of_user
    _prctl(_SET_NO_NEW_PRIVS, 1)
    if os.geteuid() == 0:
        _first_slot = _claimed_slots()  # other namespaces do not see claims
        _pids = _pid_namespace()
        _network = _unshare(_CLONE_NEWNET | _CLONE_NEWIPC)
    _threads_of_user = _count_threads()


@contextlib.contextmanager
def own_pids() -> Iterator[None]:
    """Gives a process that is forked inside the block a pid namespace of its own, if the zygote runs as root.

    Elsewhere, thread ids tell how many processes and threads others have started.
    """
    made = _pids >= 0 and _unshare(_CLONE_NEWPID)
    try:
        yield
    finally:
        if made:
            _enter(_pids)


def confine(slot: int, limits: Limits, readable: Sequence[str]) -> list[str]:
    """Confines this process for good. Call it in a forked world before any thread or any of the agent's code starts.

    Afterwards the process can compute, start threads, use the open descriptors, signal itself, and read files below
    ``readable``. It cannot open other files, write files, start or signal processes, or make sockets except an unnamed
    pair. The uid depends on the slot. Returns the names of the layers in force.
    """
    assert len(_listdir("/proc/self/task")) <= 1, "other threads can't be confined"
    os.nice(_NICE)
    _prctl(_SET_NO_NEW_PRIVS, 1)

    network, own_namespace = _namespaces()
    mounts = _unshare(_CLONE_NEWNS) and _read_only_mounts()
    if mounts and os.getpid() == 1:
        libc("mount", b"proc", b"/proc", b"proc", 1, None)  # MS_RDONLY
    own_uid = _change_user(FIRST_UID + (_first_slot + slot) % (_UIDS_OF_ZYGOTE * _ZYGOTES))
    limit(limits, counts_threads_alone=own_uid or own_namespace)
    _drop_capabilities()
    _prctl(_SET_DUMPABLE, 0)
    files = landlock.restrict(readable)
    calls = seccomp.install(opens=files)
    in_force = {"limits": True, "user": own_uid, "network": network, "mounts": mounts, "system calls": calls}
    return [layer for layer, holds in (in_force | {"files": files or calls}).items() if holds]


def isolate_apps() -> None:
    """Prepares the apps' zygote and its forks. Call it before the zygote knows where the ground truth is.

    Other processes of this user can't follow /proc/PID/cwd or /proc/PID/fd to the ground truth.
    """
    _prctl(_SET_DUMPABLE, 0)


def rank_file() -> int:
    """Opens the file for ``rank``, which a process that is closed to its user can't; -1 if there is none."""
    try:
        return os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return -1


def size() -> int:
    return math.ceil(1000 * _memory(1) / cgroups.memory_bytes())


def rank(file: int, less: int) -> None:
    """Says how soon the kernel kills this process if memory runs out: those of the greatest size plus rank come first.

    Both are in thousandths of the memory. With their zygote's size `less`, forks come in the order of what they have
    taken beyond it. A zygote has twice that less, so it comes later, whatever its forks have given back. Then the
    trainer comes.
    """
    with contextlib.suppress(OSError):
        os.write(file, str(max(0, 1000 - less)).encode())


def keep_only(fds: Collection[int]) -> None:
    """Closes all other descriptors. Of 0, 1 and 2, those not kept become /dev/null.

    The host's standard streams must be closed, because they share their flags (O_NONBLOCK) with the user's own.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        if fd not in fds and fd != null:
            os.dup2(null, fd)
    kept = sorted({0, 1, 2, *fds})
    for before, after in zip(kept, [*kept[1:], 1 << 20], strict=True):
        os.closerange(before + 1, after)


def interpreter_folders() -> list[str]:
    """The folders that this interpreter reads for late imports and time zones.

    This project is left out, because it contains solutions.
    """
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {path for path in sys.path if os.path.isdir(path)} - {os.getcwd()}
    folders |= {"/usr/share/zoneinfo", "/etc/localtime", "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"}
    there = {os.path.realpath(path) for path in folders if os.path.exists(path)}
    outer = (path for path in there if not any(path.startswith(other + os.sep) for other in there))
    return sorted(part for path in outer for part in _without(_PROJECT, path))


def _without(hidden: str, path: str) -> list[str]:
    if not f"{hidden}{os.sep}".startswith(path + os.sep):
        return [path]
    inside = [] if path == hidden else [os.path.join(path, name) for name in _listdir(path)]
    return [part for entry in inside if not os.path.islink(entry) for part in _without(hidden, entry)]


def _prctl(option: int, value: int) -> None:
    libc("prctl", option, value, 0, 0, 0)


def _unshare(flags: int) -> bool:
    return libc("unshare", flags) == 0


def _pid_namespace() -> int:
    """A descriptor of this process's pid namespace; -1 if it may not enter that."""
    try:
        namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    except OSError:
        return -1
    return namespace if _enter(namespace) else -1


def _enter(pids: int) -> bool:
    return libc("setns", pids, _CLONE_NEWPID) == 0


def _namespaces() -> tuple[bool, bool]:
    """(whether a network namespace is in force, whether this process has its own user namespace)."""
    if _network or os.geteuid() == 0:
        return _network, False
    uid, gid = os.getuid(), os.getgid()
    network = _unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC)
    if not (network or _unshare(_CLONE_NEWUSER)):
        return False, False
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    return network, True


def _read_only_mounts() -> bool:
    recursive, read_only, private = 0x8000, 1, 1 << 18
    # struct mount_attr: what is set, what is cleared, the propagation, a user namespace
    attributes = struct.pack("=QQQQ", read_only, 0, private, 0)
    return libc("syscall", _MOUNT_SETATTR, -1, b"/", recursive, attributes, len(attributes)) == 0


def _claimed_slots() -> int:
    """The first of 256 slots that no other living zygote on this machine has; 0 if all are taken.

    The kernel counts threads by uid, so worlds with the same uid would share one limit. A claim is a socket's name,
    which disappears with its process.
    """
    global _claim
    for first in range(0, _UIDS_OF_ZYGOTE * _ZYGOTES, _UIDS_OF_ZYGOTE):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0elastic-horizon-worlds-{FIRST_UID + first}")
        except OSError:
            claim.close()
            continue
        _claim = claim
        return first
    return 0


def _change_user(uid: int) -> bool:
    if os.geteuid() != 0:
        return False
    with contextlib.suppress(OSError, AttributeError):  # a container may not map this uid
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        return True
    return False


def _drop_capabilities() -> None:
    clear_all = 4
    _prctl(_CAP_AMBIENT, clear_all)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    libc("capset", header, (ctypes.c_uint32 * 6)())


def limit(limits: Limits, *, counts_threads_alone: bool = False) -> None:
    """Limits a process. Its threads can be limited if no other process has its uid, or its user namespace."""
    bounds = {
        "RLIMIT_AS": _memory(0) + limits.memory_bytes,
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_STACK": 8 << 20,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": 64,
        "RLIMIT_NICE": 0,
        "RLIMIT_RTPRIO": 0,
    }
    if counts_threads_alone:
        bounds["RLIMIT_NPROC"] = limits.threads
    elif _threads_of_user:
        bounds["RLIMIT_NPROC"] = _threads_of_user + _FREE_THREADS
    for name, bound in bounds.items():
        with contextlib.suppress(AttributeError, OSError, ValueError):  # macOS lacks some, and refuses others
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            most = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(which, (most, most))
    with contextlib.suppress(AttributeError, OSError):
        cores = sorted(os.sched_getaffinity(0))
        if cgroups.processors() < len(cores):  # threads on all of them would use up the container's quota in an instant
            first = os.getpid() % len(cores)
            os.sched_setaffinity(0, (cores * 2)[first : first + cgroups.processors()])


def _memory(field: int) -> int:
    """The bytes of the address space (0) or of what is resident of it (1)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[field]) * resource.getpagesize()
    except OSError:
        return 4 << 30


def _count_threads() -> int:
    total = 0
    for pid in filter(str.isdigit, _listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                total += len(os.listdir(f"/proc/{pid}/task"))
    return total


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:  # this user may lack a codec's file
        file.write(text.encode())
