"""Confines a world's process: it may compute, and use the descriptors that it already has.

There are six layers, each useful without the others: "limits" (rlimits), "user" (another uid, if the host runs as
root), "network" and "mounts" (namespaces; all mounts are read-only, so that reading a file changes no access time),
"system calls" (a seccomp filter), "files" (Landlock, or no opening of files at all). A layer that the host lacks is
skipped without an error and not reported as in force. On macOS, only the limits and the uid exist.

Two limits only the parent can enforce: the deadline (forks.py), and the memory of all worlds together (--max-sessions).
There are no guards in Python, because the agent's code could undo them. This module uses only the standard library.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import socket
import struct
import sys
import sysconfig
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from . import landlock, seccomp

# The worlds' uids and gids, above those that distributions give to people and daemons, below 65534 (nobody). Each
# zygote has uids of its own.
FIRST_UID, _UIDS_OF_ZYGOTE, _ZYGOTES = 61000, 256, 17

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x08000000, 0x10000000, 0x40000000
_MOUNT_SETATTR = 442  # the same number on every architecture
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_NO_NEW_PRIVS, _CAP_AMBIENT = 1, 4, 38, 47
_SIGKILL = 9
_NICE = 5  # a third of the weight of a world that is being made
# If only the user's total can be limited, the user may have this many more threads than at the start.
_FREE_THREADS = 4096
# Where this project is installed: in an ordinary Python that is its site-packages, in the middle of what can be read.
_PROJECT = os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))

_network = False  # isolate_host's result, which the worlds inherit with the fork
_first_slot = 0  # this zygote's first slot, among those of all zygotes; isolate_host sets it
_claim: socket.socket | None = None  # keeps other zygotes from using the same slots
_threads_of_user: int | None = None


@dataclass(frozen=True)
class Limits:
    """The resources that a world may use.

    Attributes:
        memory_bytes: Address space in addition to what the process has when it is confined.
        cpu_s: Processor time in seconds of the whole episode, all threads together. After that comes SIGKILL.
        file_bytes: The largest size of a file that is written; 0 allows no writing.
        open_files: Descriptor numbers must be below this.
        threads: The number of threads, where the kernel can count them for each world. Elsewhere the user's total is
            limited.
        stack_bytes: The size of the main thread's stack.
    """

    memory_bytes: int = 2 << 30
    cpu_s: int = 600
    file_bytes: int = 0
    open_files: int = 128
    threads: int = 4
    stack_bytes: int = 8 << 20


def isolate_host() -> None:
    """Prepares the zygote's main thread. Call it once, before any fork, which must be from this thread.

    If it runs as root, it claims uids that no other zygote's worlds have, and makes a network and an IPC namespace,
    which every world inherits. An ordinary user would need a user namespace for this, which the kernel refuses to a
    process with several threads (the worker protocol has a watching thread). Each world then makes its own in
    ``confine``, in about 1 ms.
    """
    global _first_slot, _network, _threads_of_user
    _prctl(_SET_NO_NEW_PRIVS, 1)
    if os.geteuid() == 0:
        _first_slot = _claimed_slots()  # before the network namespace, in which other zygotes' claims are invisible
    _network = os.geteuid() == 0 and _unshare(_CLONE_NEWNET | _CLONE_NEWIPC)
    _threads_of_user = _count_threads(os.getuid())
    seccomp.prepare()


def confine(
    slot: int,
    scratch: str,
    limits: Limits,
    readable: Sequence[str],
    *,
    parent: int | None = None,
    use_landlock: bool = True,
) -> list[str]:
    """Confines this process for good. Call it in a forked world that is ready, before any of the agent's code runs.

    Afterwards the process can compute, start threads, read and write the open descriptors (close others first with
    ``keep_only``), signal itself, and read files below ``readable``. It cannot open anything else, write a file, start
    a process, signal another process, make a socket except an unnamed pair, or undo any of this. It dies with its
    parent, or with the process `parent`. The uid depends on the slot. `use_landlock=False` forbids opening any file, as
    without Landlock.

    Returns:
        The names of the layers in force.

    Raises:
        RuntimeError: The process has more than one thread. The rights of the others could not be taken away.
    """
    if len(_listdir("/proc/self/task")) > 1:
        raise RuntimeError("confine() needs a process with one thread; fork a new process before you start any thread")
    parent = os.getppid() if parent is None else parent
    _write("/proc/self/oom_score_adj", "1000")  # if memory runs out, the kernel kills a world before the trainer
    os.nice(_NICE)
    os.setpgid(0, 0)  # kill(0, ...) would reach the zygote where no other layer forbids it
    os.chdir(scratch)
    _prctl(_SET_NO_NEW_PRIVS, 1)

    inside = ["limits"]
    network, own_namespace = _namespaces()
    mounts = _unshare(_CLONE_NEWNS) and _read_only_mounts()
    own_uid = _change_user(FIRST_UID + (_first_slot + slot) % (_UIDS_OF_ZYGOTE * _ZYGOTES))
    _limit(limits, counts_threads_alone=own_uid or own_namespace)
    _drop_capabilities()
    die_with(parent)  # after the change of uid, which clears this setting
    _prctl(_SET_DUMPABLE, 0)
    if own_uid:
        inside.append("user")
    inside += ["network"] * network + ["mounts"] * mounts

    files = use_landlock and landlock.restrict(readable)
    if seccomp.install(opens=files):
        inside.append("system calls")
        files = True
    return [*inside, "files"] if files else inside


def isolate_apps() -> None:
    """Prepares the apps' zygote and its forks. Call it before the zygote knows where the ground truth is.

    If memory runs out, the kernel kills the largest of them and of the agents' processes, before the trainer. And no
    other process of this user may follow /proc/PID/cwd or /proc/PID/fd to the ground truth. This comes second, because
    it closes the process's own files in /proc, too.
    """
    _write("/proc/self/oom_score_adj", "1000")
    _prctl(_SET_DUMPABLE, 0)


def limit(limits: Limits) -> None:
    """Limits a process of the apps, but not its number of threads: it has the trainer's uid."""
    _limit(limits, counts_threads_alone=False)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when the thread that forked it ends. Exits if ``parent`` is gone already."""
    _prctl(_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def keep_only(fds: Collection[int]) -> None:
    """Closes all other descriptors. Those of 0, 1 and 2 that are not kept become /dev/null, so that C code can print.

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
    """What this interpreter reads to import a module late or to load a time zone, without this project, which has
    solutions.
    """
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders: set[str] = {sysconfig.get_path(name) for name in names}
    folders |= {path for path in sys.path if os.path.isdir(path)} - {os.getcwd()}
    folders |= {"/usr/share/zoneinfo", "/etc/localtime", "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"}
    there = {os.path.realpath(path) for path in folders if os.path.exists(path)}
    outer = (path for path in there if not any(path.startswith(other + os.sep) for other in there))
    return sorted(part for path in outer for part in _without(_PROJECT, path))


def _without(hidden: str, path: str) -> list[str]:
    """The path, or if the hidden folder is in it, its other entries: Landlock can't exclude a folder inside another.

    Links are not among them, because they may lead elsewhere.
    """
    if not f"{hidden}{os.sep}".startswith(path + os.sep):
        return [path]
    inside = [] if path == hidden else [os.path.join(path, name) for name in _listdir(path)]
    return [part for entry in inside if not os.path.islink(entry) for part in _without(hidden, entry)]


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    zero = ctypes.c_ulong(0)
    return bool(_libc().prctl(option, ctypes.c_ulong(value), zero, zero, zero) == 0)


def _unshare(flags: int) -> bool:
    return sys.platform == "linux" and bool(_libc().unshare(flags) == 0)


def _namespaces() -> tuple[bool, bool]:
    """(whether a network namespace is in force, whether this process has a user namespace of its own)."""
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
    """Makes all mounts of this namespace read-only, and keeps new ones of the host out."""
    recursive, read_only, private = 0x8000, 1, 1 << 18
    # struct mount_attr: what is set, what is cleared, the propagation, a user namespace
    attributes = struct.pack("=QQQQ", read_only, 0, private, 0)
    numbers = (ctypes.c_long(_MOUNT_SETATTR), ctypes.c_long(-1))
    return bool(_libc().syscall(*numbers, b"/", ctypes.c_long(recursive), attributes, ctypes.c_size_t(32)) == 0)


def _claimed_slots() -> int:
    """The first of 256 slots that no other zygote on this machine has, as long as this one lives.

    The kernel counts threads by uid, so worlds with the same uid would share one limit. A claim is the name of a
    socket, which disappears with its process. If all slots are taken, the first 256 are shared.
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
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except (OSError, AttributeError):  # for example in a container that does not map this uid
        return False
    return True


def _drop_capabilities() -> None:
    """Drops all capabilities: those of a root that could not change its uid, and those of a user namespace."""
    if sys.platform != "linux":
        return
    clear_all = 4
    _prctl(_CAP_AMBIENT, clear_all)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    _libc().capset(header, (ctypes.c_uint32 * 6)())


def _limit(limits: Limits, *, counts_threads_alone: bool) -> None:
    bounds = {
        "RLIMIT_AS": _address_space() + limits.memory_bytes,
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_STACK": limits.stack_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": 64,
        "RLIMIT_NICE": 0,
        "RLIMIT_RTPRIO": 0,
    }
    if counts_threads_alone:
        bounds["RLIMIT_NPROC"] = limits.threads
    elif _threads_of_user is not None:
        bounds["RLIMIT_NPROC"] = _threads_of_user + _FREE_THREADS
    for name, bound in bounds.items():
        which = getattr(resource, name, None)
        if which is None:
            continue
        _, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            bound = min(bound, hard)
        try:
            resource.setrlimit(which, (bound, bound))
        except (OSError, ValueError):  # macOS refuses some
            continue


def _address_space() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 4 << 30  # more than an interpreter with AppWorld has


def _count_threads(uid: int) -> int | None:
    total = 0
    for pid in filter(str.isdigit, _listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid:
                total += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return total or None


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _write(path: str, text: str) -> None:
    try:
        with open(path, "wb", buffering=0) as file:  # bytes: this user may be unable to import a codec
            file.write(text.encode())
    except OSError:
        pass
