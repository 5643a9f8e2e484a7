"""Confinement: every attempt is made in a throw-away process, confined as a world is, on every kind of host there is."""

import asyncio
import concurrent.futures.thread  # noqa: F401 - a confined process may be unable to import it
import contextlib
import ctypes
import encodings.idna  # noqa: F401
import errno
import functools
import itertools
import json
import mmap
import os
import platform
import random
import resource
import select
import signal
import socket
import struct
import sys
import sysconfig
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from envs.appworld import data
from envs.appworld.backend import confine, probing, seccomp

NOBODY = 65534
MIB = 2**20
LIMITS = confine.Limits(memory_bytes=256 * MIB, cpu_s=30, threads=16)
LIBC = ctypes.CDLL(None, use_errno=True)


# ------------------------------------------------------------------ hosts, and what each can do
def in_a_fork(function):
    """The exit status of a process: what the function returns, 255 if it raises, -n if signal n killed it."""
    pid = os.fork()
    if pid == 0:
        status = 255
        try:
            status = int(function() or 0)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def become(uid):
    if os.getuid() != uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


@functools.cache
def can_unshare(flags, uid):
    return sys.platform == "linux" and in_a_fork(lambda: become(uid) or LIBC.unshare(flags) != 0) == 0


ROOT = os.getuid() == 0
USER = NOBODY if ROOT else os.getuid()
LINUX_64 = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
HAS_SECCOMP = LINUX_64 and os.path.exists("/proc/sys/kernel/seccomp")
HAS_LANDLOCK = LINUX_64 and LIBC.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_long(1)) > 0
NEWIPC, NEWUSER, NEWNET = 0x08000000, 0x10000000, 0x40000000


@dataclass(frozen=True)
class Host:
    """Where worlds are confined: as root or as a user, with some of the kernel's features kept from ``confine``."""

    name: str
    as_root: bool
    landlock: bool = True
    seccomp: bool = HAS_SECCOMP
    refused: int = 0  # flags that unshare() refuses
    other_users: bool = True

    @property
    def layers(self):
        """What must be in force, found without ``confine``."""
        flags = NEWNET | NEWIPC | (0 if self.as_root else NEWUSER)
        there = {
            "limits": True,
            "user": self.as_root and self.other_users,
            "network": not flags & self.refused and can_unshare(flags, 0 if self.as_root else USER),
            "system calls": self.seccomp,
            "files": self.seccomp or (HAS_LANDLOCK and self.landlock),
        }
        return [layer for layer, is_there in there.items() if is_there]

    @property
    def counts_threads(self):
        own_namespace = not self.as_root and not self.refused & NEWUSER and can_unshare(NEWUSER, USER)
        return "user" in self.layers or own_namespace


HOSTS = [
    Host("root", as_root=True),
    Host("root without Landlock", as_root=True, landlock=False),
    Host("root without namespaces and other users", as_root=True, refused=NEWNET, other_users=False),
    Host("user", as_root=False),
    Host("user without Landlock", as_root=False, landlock=False),
    Host("user without user namespaces", as_root=False, refused=NEWUSER),
    Host("user without the filter", as_root=False, seccomp=False),
]


@pytest.fixture(params=HOSTS, ids=lambda host: host.name)
def host(request):
    if request.param.as_root and not ROOT:
        pytest.skip("needs root")
    return request.param


@pytest.fixture
def any_host():
    return HOSTS[0] if ROOT else HOSTS[3]


@pytest.fixture(scope="module")
def scratch():
    """A folder that every user can reach and write in; pytest's own are private."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        file = Path(folder, "file")
        file.write_text("content")
        file.chmod(0o666)
        if in_a_fork(lambda: become(USER) or not os.access(file, os.W_OK)):
            pytest.skip("needs a temporary folder that every user can reach; set TMPDIR to one")
        yield folder


def live(host, scratch, act, *, limits=LIMITS, readable=(), kept=()):
    """A zygote's life on a host, with one world, which is confined and acts; to be called in a fork."""
    unshare = confine._unshare
    confine._unshare = lambda flags: not flags & host.refused and unshare(flags)
    if not host.other_users:
        confine._change_user = lambda uid: False
    if not host.seccomp:
        seccomp.install = lambda opens: False
    become(0 if host.as_root else USER)
    confine.isolate_host()
    zygote = os.getpid()

    def world():
        confine.keep_only(kept)
        act(confine.confine(3, scratch, limits, readable, parent=zygote, use_landlock=host.landlock))

    status = in_a_fork(world)
    return 128 - status if status < 0 else status


def confined(host, scratch, function, **named):
    """What a function does in a world: ("returned", value), ("raised", errno or name) or ("killed", signal)."""
    told, tell = os.pipe()

    def act(layers):
        try:
            outcome = ("returned", function(layers) if function is in_force else function())
        except BaseException as error:
            outcome = ("raised", getattr(error, "errno", None) or type(error).__name__)
        os.write(tell, json.dumps(outcome).encode())

    kept = [tell, *named.pop("kept", [])]
    status = in_a_fork(lambda: live(host, scratch, act, kept=kept, **named))
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        answer = pipe.read()
    if answer:
        return tuple(json.loads(answer))
    assert status > 128, f"the world said nothing and ended with status {status}"
    return "killed", signal.Signals(status - 128).name


def in_force(layers):
    return layers


def content(path):
    def read():
        with open(path) as file:
            return file.read()

    return read


# ------------------------------------------------------------------ what is in force
def test_names_the_layers_that_the_host_has(host, scratch):
    assert confined(host, scratch, in_force) == ("returned", host.layers)


def test_probing_finds_on_this_host_what_the_host_has(any_host):
    told, tell = os.pipe()
    assert in_a_fork(lambda: os.write(tell, json.dumps(probing.handle("probe", {})).encode()) and 0) == 0
    found = json.loads(os.read(told, 1 << 16))
    assert [layer for layer, (there, _) in found.items() if there] == any_host.layers
    assert all(absence for _, absence in found.values())


def test_a_process_with_threads_cannot_be_confined(scratch):
    def two_threads():
        done = threading.Event()
        threading.Thread(target=done.wait, daemon=True).start()
        try:
            confine.confine(0, scratch, LIMITS, ())
        except RuntimeError as error:
            return 7 if "one thread" in str(error) else 8

    assert in_a_fork(two_threads) == 7


@pytest.mark.skipif(not ROOT or sys.platform != "linux", reason="needs root on Linux")
def test_worlds_of_two_zygotes_are_two_users_while_both_live(scratch):
    """Else the threads of one would count for the other."""
    told, tell = os.pipe()
    held, hold = os.pipe()

    def zygote(then=lambda: None):
        confine.isolate_host()
        world = lambda: confine.confine(3, scratch, LIMITS, ()) and os.write(tell, struct.pack("I", os.getuid())) and 0  # noqa: E731
        return in_a_fork(world) or then()

    def wait():
        os.close(hold)
        os.read(held, 1)

    first = os.fork()
    if first == 0:
        try:
            zygote(wait)
        finally:
            os._exit(0)
    uids = [struct.unpack("I", os.read(told, 4))[0]]
    assert in_a_fork(zygote) == 0
    uids += struct.unpack("I", os.read(told, 4))
    os.close(hold)
    os.waitpid(first, 0)
    assert len(set(uids)) == 2
    assert all(confine.FIRST_UID <= uid < NOBODY for uid in uids)
    for descriptor in (told, tell, held):
        os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
def test_its_memory_is_closed_to_other_processes_of_its_user(host, scratch):
    get_dumpable = 3
    assert confined(host, scratch, lambda: LIBC.prctl(get_dumpable, 0, 0, 0, 0)) == ("returned", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
def test_the_judges_folder_is_closed_to_other_processes_of_its_user():
    def look():
        os.stat(f"/proc/{os.getppid()}/cwd/.")

    def judges():
        become(USER)
        LIBC.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as in any process that its user has started
        before = in_a_fork(look)
        confine.isolate_judges()
        assert [before, in_a_fork(look)] == [0, 255]

    assert in_a_fork(judges) == 0


@pytest.mark.skipif(not HAS_LANDLOCK, reason="/proc can be read under Landlock only")
@pytest.mark.parametrize("host", [host for host in HOSTS if host.landlock], indirect=True, ids=lambda host: host.name)
def test_no_right_is_left(host, scratch):
    outcome = confined(host, scratch, content("/proc/self/status"), readable=["/proc"])
    assert outcome[0] == "returned"
    fields = dict(line.split(":\t", 1) for line in outcome[1].splitlines() if ":\t" in line)
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == ("2" if host.seccomp else "0")


# ------------------------------------------------------------------ what is refused
def open_with(flags, path="file"):
    return lambda: os.open(path, flags, 0o600)


def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


def libc(name, *arguments):
    function = getattr(LIBC, name, None)  # found before the fork: a confined process can open no library

    def attempt():
        if function(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)) < 0:
            raise OSError(ctypes.get_errno(), name)

    return attempt


def numbered(name, *arguments):
    return libc("syscall", seccomp.numbers(platform.machine())[name], *arguments) if LINUX_64 else lambda: None


def pass_descriptor():
    a, _ = pair()
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))])


def spawn_by_clone():
    return libc("syscall", 56 if platform.machine() == "x86_64" else 220, signal.SIGCHLD, 0, 0, 0, 0)()


REFUSED = {
    "files": {
        "read a file": open_with(os.O_RDONLY, "/etc/passwd"),
        "read a file of the world's own folder": open_with(os.O_RDONLY),
        "write a file": open_with(os.O_WRONLY),
        "append to a file": open_with(os.O_WRONLY | os.O_APPEND),
        "empty a file": open_with(os.O_RDONLY | os.O_TRUNC),
        "make a file": open_with(os.O_WRONLY | os.O_CREAT, "new"),
        "make a nameless file": open_with(os.O_RDWR | getattr(os, "O_TMPFILE", 0), "."),
        "list a folder": lambda: os.listdir("/"),
        "read another process's memory file": lambda: content(f"/proc/{os.getppid()}/mem")(),
        "read another process's environment": lambda: content(f"/proc/{os.getppid()}/environ")(),
        "write to a device": open_with(os.O_WRONLY, "/dev/null"),
        "make a folder": lambda: os.mkdir("folder"),
        "remove a file": lambda: os.unlink("file"),
        "make a link": lambda: os.symlink("file", "link"),
        "execute": lambda: os.execv("/bin/true", ["true"]),
    },
    "system calls": {
        "take hold of a file by its path": open_with(getattr(os, "O_PATH", 0)),
        "rename a file": lambda: os.rename("file", "other"),
        "link a file": lambda: os.link("file", "other"),
        "cut a file": lambda: os.truncate("file", 0),
        "change a file's mode": lambda: os.chmod("file", 0o777),
        "change a file's times": lambda: os.utime("file"),
        "make a pipe with a name": lambda: os.mkfifo("fifo"),
        "change the folder": lambda: os.chdir("/"),
        "change the root": lambda: os.chroot("."),
        "make a file in memory": lambda: os.memfd_create("m"),
        "fork": os.fork,
        "fork by clone": spawn_by_clone,
        "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "execute a descriptor": lambda: os.execve(0, ["true"], {}),
        "kill the parent": lambda: os.kill(os.getppid(), signal.SIGKILL),
        "look whether a process is there": lambda: os.kill(1, 0),
        "kill all": lambda: os.kill(-1, signal.SIGKILL),
        "kill the group": lambda: os.kill(0, signal.SIGKILL),
        "kill by group": lambda: os.killpg(os.getpgrp(), signal.SIGKILL),
        "hold a process": lambda: os.pidfd_open(os.getppid()),
        "queue a signal": libc("sigqueue", 1, 0, 0),
        "stop the parent's thread": libc("syscall", 200 if platform.machine() == "x86_64" else 130, 1, 0),
        "leave the session": os.setsid,
        "trace": lambda: LIBC.ptrace(16, os.getppid(), None, None),
        "read another's memory": numbered("process_vm_readv", 1, 0, 0, 0, 0, 0),
        "make an internet socket": lambda: socket.socket(socket.AF_INET),
        "make a datagram socket": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
        "make a unix socket": lambda: socket.socket(socket.AF_UNIX),
        "make a netlink socket": lambda: socket.socket(getattr(socket, "AF_NETLINK", 16), socket.SOCK_RAW),
        "resolve a name": lambda: socket.getaddrinfo("localhost", 80),
        "send to an address": lambda: pair()[0].sendto(b"x", "\0somebody"),
        "bind": lambda: pair()[0].bind("\0me"),
        "connect": lambda: pair()[0].connect("\0somebody"),
        "pass a descriptor": pass_descriptor,
        "share memory": libc("shmget", 1, 4096, 0o1600),
        "make a message queue": libc("msgget", 1, 0o1600),
        "make namespaces": libc("unshare", NEWUSER),
        "mount": libc("mount", 0, b"/", 0, 0, 0),
        "become root": lambda: os.setresuid(0, 0, 0),
        "be nicer to itself": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
        "use other cores": lambda: os.sched_setaffinity(0, {0}),
        "be traceable": libc("prctl", 4, 1, 0, 0, 0),
        "outlive the parent": libc("prctl", 1, 0, 0, 0, 0),
        "filter its own calls": libc("prctl", 22, 2, 0, 0, 0),
        "set another's limits": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)),
        "lock memory": libc("mlock", 0, 4096),
        "set the clock": lambda: time.clock_settime(time.CLOCK_REALTIME, 0),
        "keep keys": numbered("add_key", 0, 0, 0, 0, 0),
        "use io_uring": numbered("io_uring_setup", 1, 0),
        "load a program into the kernel": numbered("bpf", 0, 0, 0),
        "handle page faults": numbered("userfaultfd", 0),
    },
}


ATTEMPTS = [(host, "files", name) for name in REFUSED["files"] for host in HOSTS]
# The filter is tried where it has the least help from the other layers.
ATTEMPTS += [(host, "system calls", name) for name in REFUSED["system calls"] for host in HOSTS if host.refused]


@pytest.mark.parametrize(("host", "layer", "name"), ATTEMPTS, indirect=["host"], ids=lambda p: getattr(p, "name", p))
def test_refuses(host, scratch, layer, name):
    if layer not in host.layers:
        pytest.skip(f"this host has no {layer!r}")
    how, what = confined(host, scratch, REFUSED[layer][name])
    refusals = {("raised", code) for code in (errno.EPERM, errno.EACCES, errno.ENOSYS)} | {("killed", "SIGSYS")}
    if name == "resolve a name":
        refusals |= {("raised", socket.EAI_AGAIN), ("raised", socket.EAI_SYSTEM)}
    assert (how, what) in refusals
    assert os.listdir(scratch) == ["file"]
    assert content(os.path.join(scratch, "file"))() == "content"


def test_the_attempts_come_through_where_nothing_is_confined(tmp_path):
    """Else the list above would show nothing."""
    (tmp_path / "file").write_text("content")

    def attempt(function):
        def act():
            os.chdir(tmp_path)
            function()

        return in_a_fork(act)

    for name in ("read a file", "write a file", "make a file", "list a folder", "make a folder"):
        assert attempt(REFUSED["files"][name]) == 0, name
    for name in ("fork", "rename a file", "make an internet socket", "make a unix socket", "make a file in memory"):
        assert attempt(REFUSED["system calls"][name]) == 0, name


def test_the_world_is_in_a_network_of_its_own_where_there_are_such(host, scratch):
    how, network = confined(host, scratch, lambda: os.readlink("/proc/self/ns/net"))
    assert how == "returned"
    assert (network != os.readlink("/proc/self/ns/net")) == ("network" in host.layers)


def test_only_what_was_named_can_be_read(host, scratch):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        named, other = Path(folder, "named"), Path(folder, "other")
        for place in (named, other):
            place.mkdir()
            (place / "file").write_text("content")
            (place / "file").chmod(0o666)
        readable = [str(named), str(Path(folder, "missing"))]

        there = ("returned", "content") if HAS_LANDLOCK and host.landlock else ("raised", errno.EACCES)
        assert confined(host, scratch, content(named / "file"), readable=readable) == there
        assert confined(host, scratch, content(other / "file"), readable=readable) == ("raised", errno.EACCES)
        write = open_with(os.O_WRONLY, named / "file")
        assert confined(host, scratch, write, readable=readable) == ("raised", errno.EACCES)


def test_a_hidden_folder_cannot_be_found(host, scratch):
    """A file's size can be asked for by its path, so an answer's path must be one that nobody can guess."""
    with tempfile.TemporaryDirectory() as name:
        installed = Path(name)
        (installed / "judge").mkdir()
        (installed / "judge" / "answer").write_text("yes")
        data.hide(installed)
        (hidden,) = installed.iterdir()
        os.chmod(installed, 0o755)
        os.chmod(hidden, 0o755)  # as for a world that runs as the folder's owner
        assert len(hidden.name) > 32
        assert confined(host, scratch, lambda: os.stat(hidden / "answer").st_size) == ("returned", 3)
        assert confined(host, scratch, lambda: os.stat(installed / "judge" / "answer")) == ("raised", errno.ENOENT)
        for look in (os.listdir, os.scandir, lambda path: os.open(path, os.O_RDONLY | os.O_DIRECTORY)):
            assert confined(host, scratch, lambda look=look: bool(look(installed))) == ("raised", errno.EACCES)


# ------------------------------------------------------------------ what is limited
def test_memory_is_limited(host, scratch):
    assert confined(host, scratch, lambda: bytearray(128 * MIB)[0]) == ("returned", 0)
    # Mapped, because an earlier test may have left this process more free memory than the limit is.
    assert confined(host, scratch, lambda: bool(mmap.mmap(-1, 512 * MIB))) == ("raised", errno.ENOMEM)
    many = confined(host, scratch, lambda: len([mmap.mmap(-1, 16 * MIB) for _ in range(32)]))
    assert many == ("raised", errno.ENOMEM)


def test_processor_time_is_limited_over_all_threads(any_host, scratch):
    def burn():
        threading.Thread(target=burn_on, daemon=True).start()
        burn_on()

    def burn_on():
        while time.monotonic() < began + 600:
            sum(range(10**5))

    began = time.monotonic()
    limits = confine.Limits(cpu_s=1)
    assert confined(any_host, scratch, burn, limits=limits) == ("killed", "SIGKILL")
    assert time.monotonic() - began < 300


def test_threads_are_limited_where_they_can_be_counted(host, scratch):
    def start_many():
        done = threading.Event()
        threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(200)]
        started = 0
        with contextlib.suppress(RuntimeError):
            for thread in threads:
                thread.start()
                started += 1
        done.set()
        return started

    limits = confine.Limits(memory_bytes=8 << 30, threads=LIMITS.threads)
    how, started = confined(host, scratch, start_many, limits=limits)
    assert how == "returned"
    assert (started < LIMITS.threads) == host.counts_threads
    assert started >= LIMITS.threads // 2


@pytest.mark.parametrize("allowed", [0, 100])
def test_an_open_file_can_be_written_so_far_only(any_host, scratch, tmp_path, allowed):
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)

    def write():
        written = 0
        try:
            while True:
                written += os.write(file, b"x" * 1000)
        except OSError as error:
            return [written, error.errno]

    limits = confine.Limits(file_bytes=allowed)
    assert confined(any_host, scratch, write, limits=limits, kept=[file]) == ("returned", [allowed, errno.EFBIG])
    assert (tmp_path / "log").stat().st_size == allowed


def test_descriptors_are_limited(any_host, scratch):
    assert confined(any_host, scratch, lambda: [os.pipe() for _ in range(1000)]) == ("raised", errno.EMFILE)


@pytest.mark.parametrize("name", ["AS", "CPU", "FSIZE", "NOFILE", "STACK", "CORE", "NPROC"])
def test_no_limit_can_be_raised(host, scratch, name):
    which = getattr(resource, f"RLIMIT_{name}")

    def lift():
        _, hard = resource.getrlimit(which)
        assert hard != resource.RLIM_INFINITY
        resource.setrlimit(which, (hard, hard + 1))

    assert confined(host, scratch, lift) == ("raised", "ValueError")


# ------------------------------------------------------------------ what goes on working
def run_threads():
    found = []
    threads = [threading.Thread(target=found.append, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


def be_interrupted():
    def interrupt(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while True:
            pass
    except TimeoutError:
        pass
    signal.alarm(600)
    signal.alarm(0)
    return "interrupted"


def talk():
    here, there = socket.socketpair()
    here.sendall(b"x" * 1000)
    there.settimeout(60)
    read, write = os.pipe()
    os.write(write, b"y")
    ready, _, _ = select.select([read], [], [], 60)
    return [len(there.recv(2000)), ready == [read]]


def run_asyncio():
    async def wait():
        await asyncio.sleep(0.01)
        return await asyncio.to_thread(lambda: 5)

    return asyncio.run(wait())


def signal_itself():
    caught = []
    signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    return caught


# What the engine does itself, test_adaptations.py plays in a confined world: memory, databases, clocks, chance.
KEEPS_WORKING = {
    "threads": (run_threads, [0, 1, 2, 3, 4]),
    "alarms": (be_interrupted, "interrupted"),
    "pairs of sockets and pipes": (talk, [1000, True]),
    "an event loop": (run_asyncio, 5),
    "signals to itself": (signal_itself, [1, 1]),
    "printing": (lambda: os.write(1, b"nowhere"), 7),
    "facts about itself": (lambda: os.getpid() != os.getppid() and os.uname().sysname, platform.system()),
}


@pytest.mark.parametrize("name", KEEPS_WORKING)
def test_keeps_working(host, scratch, name):
    function, value = KEEPS_WORKING[name]
    assert confined(host, scratch, function) == ("returned", value)


# ------------------------------------------------------------------ its end
def ends_with(parent_of):
    """Whether a process that tells its pid through the descriptor it is given ends within a minute of its parent's end."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        try:
            parent_of(tell)
        finally:
            os._exit(1)
    os.close(tell)
    with os.fdopen(told, "rb", buffering=0) as pipe:
        assert pipe.read(1) == b"u"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ready, _, _ = select.select([pipe], [], [], 60)
        return bool(ready) and pipe.read(1) == b""


def test_a_world_ends_with_its_zygote(host, scratch):
    def act_on(tell):
        def act(layers):
            os.write(tell, b"u")
            time.sleep(600)

        return act

    assert ends_with(lambda tell: live(host, scratch, act_on(tell), kept=[tell]))


def test_a_process_can_be_made_to_end_with_its_parent():
    def parent(tell):
        me = os.getpid()

        def child():
            confine.die_with(me)
            os.write(tell, b"u")
            time.sleep(600)

        in_a_fork(child)

    assert ends_with(parent)


def test_a_process_whose_parent_is_gone_already_ends():
    assert in_a_fork(lambda: confine.die_with(os.getpid())) == 1  # it is not its own parent
    me = os.getpid()
    assert in_a_fork(lambda: confine.die_with(me)) == 0


# ------------------------------------------------------------------ what it is prepared with
def test_only_the_descriptors_named_stay_open():
    def close():
        pipe = os.pipe()
        high = os.dup2(pipe[0], 900)
        confine.keep_only([pipe[1], 1])
        null = os.stat(os.devnull)
        stdin, stderr = os.fstat(0), os.fstat(2)
        left = []
        for fd in range(1000):
            with contextlib.suppress(OSError):
                os.fstat(fd)
                left.append(fd)
        return (left == [0, 1, 2, pipe[1]]) + 2 * (stdin.st_rdev == stderr.st_rdev == null.st_rdev) + 4 * (high == 900)

    assert in_a_fork(close) == 7


def covered(path):
    folders, path = confine.interpreter_folders(), os.path.realpath(path)
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def test_the_interpreters_folders_hold_its_library_and_nobodys_home():
    assert covered(sysconfig.get_path("stdlib"))
    assert covered(pytest.__file__)
    assert not covered(os.path.expanduser("~"))
    assert not covered("/etc/passwd")
    assert not covered("/proc/self")


def test_this_project_is_not_readable_where_it_is_installed_in_the_interpreters_library(monkeypatch):
    assert Path(confine._PROJECT, "envs", "appworld", "mini").is_dir()
    monkeypatch.setattr(confine, "_PROJECT", os.path.realpath(os.path.dirname(json.__file__)))  # as its site-packages
    assert covered(os.__file__)
    assert covered(random.__file__)
    assert not covered(json.__file__)
    assert not covered(sysconfig.get_path("stdlib"))


# ------------------------------------------------------------------ the filter, interpreted
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, EACCES, ENOSYS = (0x00050000 | e for e in (errno.EPERM, errno.EACCES, errno.ENOSYS))
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PID = 4242
# Numbers written down again, from the kernel's headers: name=x86_64/aarch64.
CALLS = """
    read=0/63 write=1/64 open=2/- openat=257/56 mmap=9/222 futex=202/98 setitimer=38/103 exit_group=231/94
    socket=41/198 connect=42/203 bind=49/200 listen=50/201 accept=43/202 sendto=44/206 sendmsg=46/211 recvmsg=47/212
    socketpair=53/199 clone=56/220 clone3=435/435 fork=57/- vfork=58/- execve=59/221 execveat=322/281 kill=62/129
    tkill=200/130 tgkill=234/131 rt_sigqueueinfo=129/138 rt_tgsigqueueinfo=297/240 pidfd_open=434/434
    pidfd_send_signal=424/424 openat2=437/437 ptrace=101/117 prctl=157/167 setrlimit=160/164 prlimit64=302/261
    unlink=87/- unlinkat=263/35 mkdirat=258/34 memfd_create=319/279 memfd_secret=447/447 ioctl=16/29 fcntl=72/25
    setuid=105/146 chdir=80/49 seccomp=317/277 io_uring_setup=425/425 landlock_restrict_self=446/446
"""
CALLS = {
    name: tuple(None if number == "-" else int(number) for number in pair.split("/"))
    for name, pair in (entry.split("=") for entry in CALLS.split())
}


def decide(program, machine, number, arguments=()):
    """What a filter says about a call: a small interpreter of classic BPF, with the operations that it uses."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, MACHINES[machine], 0, *(a & (2**64 - 1) for a in padded))
    at = accumulator = 0
    for _ in range(len(program)):
        operation, if_true, if_false, operand = program[at]
        operand = PID if operand == seccomp.OWN_PID else operand
        at += 1
        if operation == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x06:  # BPF_RET | BPF_K
            return operand
        elif operation == 0x05:  # BPF_JMP | BPF_JA
            at += operand
        else:  # BPF_JMP | BPF_JEQ, BPF_JGE, BPF_JSET | BPF_K
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
            at += if_true if holds[operation] else if_false
    raise AssertionError("the filter has no end")


@pytest.fixture(
    params=itertools.product(MACHINES, (True, False)), ids=lambda p: f"{p[0]}{'' if p[1] else ', no opens'}"
)
def judge(request):
    """A function of a call's name and arguments."""
    machine, opens = request.param
    program = seccomp.program(machine, opens=opens)
    column = list(MACHINES).index(machine)

    def judged(name, *arguments):
        number = name if isinstance(name, int) else CALLS[name][column]
        return None if number is None else decide(program, machine, number, arguments)

    judged.machine, judged.opens, judged.program = machine, opens, program
    return judged


THREAD = (
    0x3D0F00  # CLONE_VM FS FILES SIGHAND THREAD SYSVSEM SETTLS PARENT_SETTID CHILD_CLEARTID, as glibc makes threads
)
NAMESPACES = (0x20000, 0x02000000, 0x04000000, 0x08000000, NEWUSER, 0x20000000, NEWNET)
READ_ONLY = (os.O_RDONLY, os.O_RDONLY | os.O_CLOEXEC, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
WRITES = (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND, 0o10000000, 0o20000000)
OTHERS = (PID - 1, 1, 0, -1, -PID, 2**32 - 1)
# What is decided -> the calls: a name, and the arguments.
DECISIONS = {
    ALLOW: [
        *((name,) for name in ("read", "write", "mmap", "futex", "setitimer", "exit_group")),
        ("clone", THREAD), ("clone", THREAD | 0x400000),  # musl adds CLONE_DETACHED
        *((name, PID, 9) for name in ("kill", "tkill", "tgkill")),
        ("prlimit64", 0, 7, 0, 0xFFFF), ("prlimit64", PID, 7, 0, 0xFFFF),
        ("sendto", 3, 0xFFFF, 10, 0, 0, 0), ("socketpair", socket.AF_UNIX),
        ("fcntl", 0, 3), ("ioctl", 0, 0x5401), ("prctl", 15),  # F_GETFL, TCGETS, PR_SET_NAME
    ],
    EPERM: [
        *((name,) for name in ("socket", "connect", "bind", "listen", "accept", "sendmsg", "recvmsg", "fork", "vfork")),
        *((name,) for name in ("execve", "execveat", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "setrlimit", "unlink")),
        *((name,) for name in ("unlinkat", "mkdirat", "memfd_create", "setuid", "chdir", "seccomp")),
        ("clone", signal.SIGCHLD), ("clone", 0x4000 | 0x100 | signal.SIGCHLD),  # vfork
        ("clone", THREAD & ~0x10000),  # shares all, is no thread
        *(("clone", THREAD | namespace) for namespace in NAMESPACES),
        *((name, other, 9) for name in ("kill", "tkill", "tgkill") for other in OTHERS),
        # 1 << 32 is a pointer whose lower half is zero.
        *(("prlimit64", pid, 7, limit, 0) for pid in (0, PID) for limit in (0x7FFF, 1 << 32)), ("prlimit64", 1, 7, 0, 0xFFFF),
        ("sendto", 3, 0xFFFF, 10, 0, 0xFFFF, 16), ("sendto", 3, 0xFFFF, 10, 0, 1 << 32, 16), ("socketpair", socket.AF_INET),
        ("fcntl", 0, 8), ("fcntl", 0, 1031), ("ioctl", 0, 0x5412),  # F_SETOWN, F_SETPIPE_SZ, TIOCSTI
        *(("prctl", option) for option in (1, 4, 8, 22, 24, 47)),  # PDEATHSIG DUMPABLE KEEPCAPS SECCOMP CAPBSET_DROP CAP_AMBIENT
    ],
    EACCES: [
        *(("open", 0, flags | bit) for flags in READ_ONLY for bit in WRITES),
        *(("openat", 0, 0, flags | bit) for flags in READ_ONLY for bit in WRITES),
    ],
    ENOSYS: [
        (name,)
        for name in ("clone3", "pidfd_open", "pidfd_send_signal", "openat2", "memfd_secret", "landlock_restrict_self")
    ],
    KILL: [("ptrace",), ("io_uring_setup",)],
}  # fmt: skip


@pytest.mark.parametrize("verdict", DECISIONS, ids=["allow", "EPERM", "EACCES", "ENOSYS", "kill"])
def test_filter_decides(judge, verdict):
    for call in DECISIONS[verdict]:
        assert judge(*call) in (verdict, None), call


def test_filter_lets_files_be_opened_for_reading_at_most(judge):
    for flags in READ_ONLY:
        assert judge("open", 0, flags) in (ALLOW if judge.opens else EACCES, None)
        assert judge("openat", 0, 0, flags) == (ALLOW if judge.opens else EACCES)


def test_filter_decides_about_every_number_and_refuses_by_default(judge):
    known = set(seccomp.numbers(judge.machine).values())
    for number in range(1024):
        verdict = judge(number)
        if number not in known:
            assert verdict == (EPERM if number < 424 else ENOSYS), number
        assert verdict in (ALLOW, KILL, EPERM, EACCES, ENOSYS)
    for number in (2**31 - 1, -1):
        assert judge(number) in (EPERM, ENOSYS, KILL)


def test_filter_kills_on_another_calling_convention(judge):
    other = next(machine for machine in MACHINES if machine != judge.machine)
    assert decide(judge.program, other, 0) == KILL
    if judge.machine == "x86_64":
        for number in (0, 59, 57, 520):
            assert judge(0x40000000 | number) == KILL


def test_filter_fits_into_the_kernel(judge):
    assert len(judge.program) < 4096
    assert all(max(if_true, if_false) < 256 for _, if_true, if_false, _ in judge.program)
