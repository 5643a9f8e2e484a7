"""Confinement: every attempt is made in a throw-away process, confined as a world is, on every kind of host."""

import concurrent.futures.thread  # noqa: F401 - a confined process may be unable to import it
import contextlib
import ctypes
import encodings.idna  # noqa: F401
import errno
import functools
import json
import mmap
import os
import platform
import random
import resource
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

from envs.appworld.backend import confine, landlock, probing, seccomp

NOBODY = 65534
MIB = 2**20
LIMITS = confine.Limits(memory_bytes=256 * MIB, cpu_s=30, threads=16)
LIBC = ctypes.CDLL(None, use_errno=True)


# Hosts, and what each can do.
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
HAS_MOUNT_SETATTR = (
    sys.platform == "linux"
    and LIBC.syscall(ctypes.c_long(442), ctypes.c_long(-1), None) < 0
    and (ctypes.get_errno() != errno.ENOSYS)
)
NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000


@dataclass(frozen=True)
class Host:
    """Where worlds are confined: as root or as a user, with some of the kernel's features kept from ``confine``."""

    name: str
    as_root: bool
    landlock: bool = True
    seccomp: bool = HAS_SECCOMP
    refused: int = 0  # flags that unshare() refuses

    @property
    def layers(self):
        flags = NEWNET | NEWIPC | (0 if self.as_root else NEWUSER)
        there = {
            "limits": True,
            "user": self.as_root,
            "network": not flags & self.refused and can_unshare(flags, 0 if self.as_root else USER),
            "mounts": HAS_MOUNT_SETATTR and self.counts_threads and not self.refused & NEWNS,
            "system calls": self.seccomp,
            "files": self.seccomp or (HAS_LANDLOCK and self.landlock),
        }
        return [layer for layer, is_there in there.items() if is_there]

    @property
    def counts_threads(self):
        return self.as_root or (not self.refused & NEWUSER and can_unshare(NEWUSER, USER))


HOSTS = [
    Host("root", as_root=True),
    Host("root without Landlock", as_root=True, landlock=False),
    Host("user", as_root=False),
    Host("user without Landlock", as_root=False, landlock=False),
    Host("user without user namespaces", as_root=False, refused=NEWUSER),
    Host("user without the filter", as_root=False, seccomp=False, refused=NEWNS),
]


@pytest.fixture(params=HOSTS, ids=lambda host: host.name)
def host(request):
    if request.param.as_root and not ROOT:
        pytest.skip("needs root")
    return request.param


@pytest.fixture
def any_host():
    return HOSTS[0] if ROOT else HOSTS[2]


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
    if not host.seccomp:
        seccomp.install = lambda opens: False
    if not host.landlock:
        landlock.restrict = lambda readable: False
    become(0 if host.as_root else USER)
    confine.isolate_host()

    def world():
        confine.keep_only(kept)
        os.chdir(scratch)
        act(confine.confine(3, limits, readable))

    with confine.own_pids():
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


# What is in force.
def test_names_the_layers_that_the_host_has(host, scratch):
    assert confined(host, scratch, in_force) == ("returned", host.layers)


def test_probing_finds_on_this_host_what_the_host_has(any_host):
    told, tell = os.pipe()
    assert in_a_fork(lambda: os.write(tell, json.dumps(probing.handle("probe", {})).encode()) and 0) == 0
    found = json.loads(os.read(told, 1 << 16))
    assert [layer for layer, (there, _) in found.items() if there] == any_host.layers
    assert all(absence for _, absence in found.values())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
def test_its_memory_is_closed_to_other_processes_of_its_user(host, scratch):
    get_dumpable = 3
    assert confined(host, scratch, lambda: LIBC.prctl(get_dumpable, 0, 0, 0, 0)) == ("returned", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
def test_the_apps_folder_is_closed_to_other_processes_of_its_user():
    def look():
        os.stat(f"/proc/{os.getppid()}/cwd/.")

    def apps():
        become(USER)
        LIBC.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as in any process that its user has started
        before = in_a_fork(look)
        confine.isolate_apps()
        assert [before, in_a_fork(look)] == [0, 255]

    assert in_a_fork(apps) == 0


@pytest.mark.skipif(not HAS_LANDLOCK, reason="/proc can be read under Landlock only")
@pytest.mark.parametrize("host", [host for host in HOSTS if host.landlock], indirect=True, ids=lambda host: host.name)
def test_no_right_is_left(host, scratch):
    outcome = confined(host, scratch, content("/proc/self/status"), readable=["/proc"])
    assert outcome[0] == "returned"
    fields = dict(line.split(":\t", 1) for line in outcome[1].splitlines() if ":\t" in line)
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == ("2" if host.seccomp else "0")


# What is refused.
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


def pass_descriptor():
    a, _ = pair()
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))])


REFUSED = {
    "files": {
        "read a file": open_with(os.O_RDONLY, "/etc/passwd"),
        "read a file of the world's own folder": open_with(os.O_RDONLY),
        "write a file": open_with(os.O_WRONLY),
        "make a file": open_with(os.O_WRONLY | os.O_CREAT, "new"),
        "list a folder": lambda: os.listdir("/"),
        "read a process's environment": lambda: content(f"/proc/{os.getppid() or 1}/environ")(),
        "make a folder": lambda: os.mkdir("folder"),
        "remove a file": lambda: os.unlink("file"),
        "execute": lambda: os.execv("/bin/true", ["true"]),
    },
    "system calls": {
        "take hold of a file by its path": open_with(getattr(os, "O_PATH", 0)),
        "rename a file": lambda: os.rename("file", "other"),
        "change a file's mode": lambda: os.chmod("file", 0o777),
        "change the folder": lambda: os.chdir("/"),
        "see what was read from the disk": lambda: resource.getrusage(resource.RUSAGE_SELF),
        "make a file in memory": lambda: os.memfd_create("m"),
        "fork": os.fork,
        "kill the parent": lambda: os.kill(os.getppid(), signal.SIGKILL),
        "trace": lambda: libc("ptrace", 16, os.getppid(), None, None)(),
        "read another's memory": libc("process_vm_readv", 1, 0, 0, 0, 0, 0),
        "make an internet socket": lambda: socket.socket(socket.AF_INET),
        "make a unix socket": lambda: socket.socket(socket.AF_UNIX),
        "send to an address": lambda: pair()[0].sendto(b"x", "\0somebody"),
        "bind": lambda: pair()[0].bind("\0me"),
        "connect": lambda: pair()[0].connect("\0somebody"),
        "pass a descriptor": pass_descriptor,
        "make namespaces": libc("unshare", NEWUSER),
        "mount": libc("mount", 0, b"/", 0, 0, 0),
        "become root": lambda: os.setresuid(0, 0, 0),
        "be traceable": libc("prctl", 4, 1, 0, 0, 0),
        "set another's limits": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)),
        "use io_uring": libc("syscall", 425, 1, 0),
    },
}


ATTEMPTS = [(host, "files", name) for name in REFUSED["files"] for host in HOSTS]
# The filter is tried where it has the least help from the other layers.
ATTEMPTS += [
    (host, "system calls", name) for name in REFUSED["system calls"] for host in HOSTS if host.refused & NEWUSER
]


@pytest.mark.parametrize(("host", "layer", "name"), ATTEMPTS, indirect=["host"], ids=lambda p: getattr(p, "name", p))
def test_refuses(host, scratch, layer, name):
    if layer not in host.layers:
        pytest.skip(f"this host has no {layer!r}")
    refusals = {("raised", code) for code in (errno.EPERM, errno.EACCES, errno.ENOSYS)}
    assert confined(host, scratch, REFUSED[layer][name]) in refusals
    assert os.listdir(scratch) == ["file"]
    assert content(os.path.join(scratch, "file"))() == "content"


def test_the_attempts_come_through_where_nothing_is_confined(tmp_path):
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


def test_ids_tell_nothing_of_other_processes_where_root_may_make_namespaces(host, scratch):
    ids = confined(host, scratch, lambda: [os.getpid(), os.readlink("/proc/self")])[1]
    assert (ids == [1, "1"]) == (host.as_root and can_unshare(NEWPID, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's")
def test_reading_leaves_no_mark_for_a_later_world_where_there_are_mounts(host, scratch):
    link = Path(scratch, "link")
    link.symlink_to("nowhere")
    try:
        os.utime(link, (1, 1), follow_symlinks=False)
        assert confined(host, scratch, lambda: os.readlink(link)) == ("returned", "nowhere")
        assert (link.lstat().st_atime == 1) == ("mounts" in host.layers)
    finally:
        link.unlink()


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
    with tempfile.TemporaryDirectory() as name:
        installed = Path(name)
        hidden = installed / "root-7"
        hidden.mkdir()
        (hidden / "answer").write_text("yes")
        os.chmod(installed, 0o755)
        os.chmod(hidden, 0o755)  # as for a world that runs as the folder's owner
        assert confined(host, scratch, lambda: os.stat(hidden / "answer").st_size) == ("returned", 3)
        assert confined(host, scratch, lambda: os.stat(installed / "root" / "answer")) == ("raised", errno.ENOENT)
        for look in (os.listdir, os.scandir, lambda path: os.open(path, os.O_RDONLY | os.O_DIRECTORY)):
            assert confined(host, scratch, lambda look=look: bool(look(installed))) == ("raised", errno.EACCES)


# What is limited.
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


def test_it_runs_on_as_many_processors_as_the_container_s_quota_allows(any_host, scratch, monkeypatch):
    monkeypatch.setattr(confine.cgroups, "processors", lambda: 1)
    assert confined(any_host, scratch, lambda: len(os.sched_getaffinity(0))) == ("returned", 1)


# What it is prepared with.
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


# The filter, interpreted.
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, EACCES, ENOSYS = (0x00050000 | e for e in (errno.EPERM, errno.EACCES, errno.ENOSYS))
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PID = 4242
THREAD = (
    0x3D0F00  # CLONE_VM FS FILES SIGHAND THREAD SYSVSEM SETTLS PARENT_SETTID CHILD_CLEARTID, as glibc makes threads
)
# A call, with its numbers from the kernel's headers for both machines, and its arguments -> what is decided.
DECISIONS = [
    ((0, 63), (), ALLOW),  # read
    ((56, 220), (THREAD,), ALLOW),  # clone
    ((56, 220), (signal.SIGCHLD,), EPERM),
    ((56, 220), (THREAD | NEWUSER,), EPERM),
    ((62, 129), (PID, 9), ALLOW),  # kill
    ((62, 129), (-PID, 9), EPERM),
    ((62, 129), (PID, signal.SIGCONT), EPERM),
    ((234, 131), (PID, PID, signal.SIGCONT), EPERM),  # tgkill, as raise() makes it
    ((234, 131), (PID, PID, signal.SIGALRM), ALLOW),
    ((302, 261), (0, 7, 0, 0xFFFF), ALLOW),  # prlimit64
    ((302, 261), (0, 7, 1 << 32, 0), EPERM),  # a pointer whose lower half is zero
    ((41, 198), (), EPERM),  # socket
    ((59, 221), (), EPERM),  # execve
    ((257, 56), (0, 0, os.O_WRONLY), EACCES),  # openat
    ((257, 56), (0, 0, os.O_RDONLY | os.O_CREAT), EACCES),
    ((435, 435), (), ENOSYS),  # clone3
    ((101, 117), (), EPERM),  # ptrace
    ((425, 425), (), ENOSYS),  # io_uring_setup
]


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


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_decides_by_number_and_arguments_and_refuses_what_it_does_not_know(machine, opens):
    program = seccomp.program(machine, opens=opens)
    for numbers, arguments, verdict in DECISIONS:
        number = numbers[list(MACHINES).index(machine)]
        assert decide(program, machine, number, arguments) == verdict, (number, arguments)
    openat = seccomp.numbers(machine)["openat"]
    assert decide(program, machine, openat, (0, 0, os.O_RDONLY)) == (ALLOW if opens else EACCES)
    for number in {*range(1024)} - {*seccomp.numbers(machine).values()}:
        assert decide(program, machine, number) == (EPERM if number < 424 else ENOSYS), number
    # Another calling convention.
    assert decide(program, next(other for other in MACHINES if other != machine), 0) == KILL
    assert machine != "x86_64" or decide(program, machine, 0x40000000) == KILL
