"""The system-call filter of a world: an allow list, as a seccomp BPF program.

A deny list would miss the calls of newer kernels. A call that is not on the list fails with EPERM, which the agent sees
as a PermissionError. One is missing on purpose: getrusage tells which files earlier episodes have read.

A filter cannot read paths; landlock.py restricts those. Only x86_64 and aarch64 are supported.
"""

import ctypes
import errno
import os
import struct
import sys

from .libc import libc

# name=number on x86_64/number on aarch64; "-" if the architecture has no such call.
_ALLOWED = """
    read=0/63 write=1/64 readv=19/65 writev=20/66 pread64=17/67 pwrite64=18/68 close=3/57 close_range=436/436
    lseek=8/62 dup=32/23 dup2=33/- dup3=292/24 fstat=5/80 stat=4/- lstat=6/- newfstatat=262/79 statx=332/291
    access=21/- faccessat=269/48 faccessat2=439/439 readlink=89/- readlinkat=267/78 getcwd=79/17 getdents64=217/61
    pipe=22/- pipe2=293/59 poll=7/- ppoll=271/73 select=23/- pselect6=270/72 epoll_create1=291/20 epoll_ctl=233/21
    epoll_wait=232/- epoll_pwait=281/22 eventfd2=290/19 recvfrom=45/207 shutdown=48/210 getsockname=51/204
    getpeername=52/205 getsockopt=55/209
    mmap=9/222 munmap=11/215 mprotect=10/226 mremap=25/216 madvise=28/233 brk=12/214 futex=202/98
    set_robust_list=273/99 rseq=334/293 sched_yield=24/124 sched_getaffinity=204/123 getcpu=309/168 exit=60/93
    exit_group=231/94 restart_syscall=219/128 wait4=61/260 waitid=247/95
    rt_sigaction=13/134 rt_sigprocmask=14/135 rt_sigreturn=15/139 rt_sigpending=127/136 rt_sigtimedwait=128/137
    rt_sigsuspend=130/133 sigaltstack=131/132 pause=34/- alarm=37/- setitimer=38/103 getitimer=36/102 nanosleep=35/101
    clock_nanosleep=230/115 clock_gettime=228/113 clock_getres=229/114 gettimeofday=96/169 time=201/- times=100/153
    getpid=39/172 getppid=110/173 gettid=186/178 getuid=102/174 geteuid=107/175 getgid=104/176 getegid=108/177
    getresuid=118/148 getresgid=120/150 getgroups=115/158 getpgrp=111/- getpgid=121/155 getsid=124/156
    getrandom=318/278 uname=63/160 sysinfo=99/179 getrlimit=97/163
"""
_CHECKED = """
    open=2/- openat=257/56 clone=56/220 kill=62/129 tkill=200/130 tgkill=234/131 socketpair=53/199 sendto=44/206
    fcntl=72/25 ioctl=16/29 prctl=157/167 prlimit64=302/261
"""
_LATE = 424  # calls from here on are newer than 2019 and get ENOSYS, so that libraries use older ones

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # marks x86_64's second calling convention, with other numbers

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSE, _NO_ACCESS, _UNKNOWN = _ERRNO | errno.EPERM, _ERRNO | errno.EACCES, _ERRNO | errno.ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _JUMP, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06  # BPF operations

# O_WRONLY O_RDWR O_CREAT O_TRUNC O_APPEND O_PATH __O_TMPFILE. Landlock does not check O_PATH.
_OPEN_BITS = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o10000000 | 0o20000000
_THREAD_BITS = 0x7D0F00  # what the C libraries pass to make a thread
_CLONE_THREAD = 0x10000
# F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC. F_SETOWN (it sends signals) and locks are refused.
_FCNTL = (0, 1, 2, 3, 4, 1030)
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
_PRCTL = (2, 3, 15, 16, 21, 39)  # GET_PDEATHSIG GET_DUMPABLE SET_NAME GET_NAME GET_SECCOMP GET_NO_NEW_PRIVS
_AF_UNIX = 1
_SIGCONT = 18  # it would discard the SIGSTOP that halts a world between two steps

OWN_PID = -1  # a placeholder in a program for the pid of the process that installs it

Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, operand
_ALLOWS, _REFUSES, _KILLS = [(_RETURN, 0, 0, verdict) for verdict in (_ALLOW, _REFUSE, _KILL)]


def numbers(machine: str, table: str = _ALLOWED + _CHECKED) -> dict[str, int]:
    column = list(_AUDIT_ARCH).index(machine)
    rows = (entry.split("=") for entry in table.split())
    return {name: int(pair.split("/")[column]) for name, pair in rows if pair.split("/")[column] != "-"}


def _low(argument: int) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * argument)  # struct seccomp_data; both architectures are little-endian


def _one_of(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    tests = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [_low(argument), *tests, _REFUSES, _ALLOWS]


def _null(argument: int) -> list[Instruction]:
    high = (_LOAD, 0, 0, 20 + 8 * argument)
    return [_low(argument), (_EQUAL, 1, 0, 0), _REFUSES, high, (_EQUAL, 1, 0, 0), _REFUSES]


def _checks(opens: bool) -> dict[str, list[Instruction]]:
    not_open = (_RETURN, 0, 0, _NO_ACCESS)
    other_bits = ~_THREAD_BITS & 0xFFFFFFFF

    def reading(flags: int) -> list[Instruction]:
        return [_low(flags), (_ANY_BIT, 0, 1, _OPEN_BITS), not_open, _ALLOWS] if opens else [not_open]

    def itself(number: int) -> list[Instruction]:
        return [_low(number), (_EQUAL, 0, 1, _SIGCONT), _REFUSES, *_one_of(0, (OWN_PID,))]

    return {
        "open": reading(1),
        "openat": reading(2),
        "clone": [_low(0), (_ANY_BIT, 1, 0, other_bits), (_ANY_BIT, 1, 0, _CLONE_THREAD), _REFUSES, _ALLOWS],
        "kill": itself(1),
        "tkill": itself(1),
        "tgkill": itself(2),
        "socketpair": _one_of(0, (_AF_UNIX,)),
        "sendto": [*_null(4), _ALLOWS],  # no address: send() only
        "fcntl": _one_of(1, _FCNTL),
        "ioctl": _one_of(1, _IOCTL),
        "prctl": _one_of(0, _PRCTL),
        "prlimit64": [*_null(2), *_one_of(0, (0, OWN_PID))],  # read its own limits
    }


def _tree(leaves: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Finds by bisection the last leaf at or below the loaded number. The kernel runs this for every number."""
    if len(leaves) == 1:
        return leaves[0][1]
    middle = len(leaves) // 2
    below, above = _tree(leaves[:middle]), _tree(leaves[middle:])
    return [(_AT_LEAST, 0, 1, leaves[middle][0]), (_JUMP, 0, 0, len(below)), *below, *above]


def program(machine: str, *, opens: bool) -> list[Instruction]:
    """The filter for "x86_64" or "aarch64", with OWN_PID in place of the process's pid.

    `opens` says whether files may be opened for reading. Landlock decides which.
    """
    checks = _checks(opens)
    bodies = {number: [_ALLOWS] for number in numbers(machine, _ALLOWED).values()}
    bodies |= {number: checks[name] for name, number in numbers(machine, _CHECKED).items()}
    leaves: list[tuple[int, list[Instruction]]] = []
    for n in range(max(bodies) + 2):
        body = bodies.get(n, [(_RETURN, 0, 0, _REFUSE if n < _LATE else _UNKNOWN)])
        if not leaves or leaves[-1][1] != body:
            leaves.append((n, body))
    if machine == "x86_64":
        leaves += [(_X32, [_KILLS]), (0xFFFFFFFF, [_REFUSES])]
    start = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), _KILLS, (_LOAD, 0, 0, 0)]
    return [*start, *_tree(leaves)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install(*, opens: bool) -> bool:
    """Puts the filter on every thread of this process for good, and returns whether the kernel has such filters.

    It needs PR_SET_NO_NEW_PRIVS.
    """
    machine = os.uname().machine
    if machine not in _AUDIT_ARCH or sys.maxsize <= 2**32:
        return False
    code = b"".join(
        struct.pack("=HBBI", *jump, os.getpid() if operand == OWN_PID else operand)
        for *jump, operand in program(machine, opens=opens)
    )
    seccomp, filter_mode, all_threads = {"x86_64": 317, "aarch64": 277}[machine], 1, 1
    return libc("syscall", seccomp, filter_mode, all_threads, ctypes.byref(_Program(len(code) // 8, code))) == 0
