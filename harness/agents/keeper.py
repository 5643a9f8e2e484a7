"""Runs a command so that nothing of it outlives the trainer: ``python -I -S keeper.py COMMAND...``.

When the command or stdin ends (the trainer closes it or is dead), this process kills all that the command has started,
and ends as the command did. On Linux this reaches processes with sessions of their own, too.
"""

import os
import signal
import sys
import threading
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(words: list[str]) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    command = os.fork()
    if command == 0:
        _become(words)
    threading.Thread(target=_kill_at_the_end_of_stdin, args=(command,), daemon=True).start()
    ended = status = 0
    while ended != command:
        ended, status = os.waitpid(-1, 0)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(command, signal.SIGKILL)
    with suppress(ChildProcessError):  # there are none any more
        while True:
            _kill_children()
            os.waitpid(-1, 0)
    if os.WIFSIGNALED(status):
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _become(words: list[str]) -> None:
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{words[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _kill_at_the_end_of_stdin(command: int) -> None:
    os.read(0, 1)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(command, signal.SIGKILL)


def _kill_children() -> None:
    for pid in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat:
            if int(stat.read().rpartition(b")")[2].split()[1]) == os.getpid():
                os.kill(int(pid), signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    """On other systems than Linux, only the command's process group is killed."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


if __name__ == "__main__":
    main(sys.argv[1:])
