"""Runs jobs at the same time on the cores or GPUs of this machine, each in a subprocess; they end when this process does.

If a job fails, it is reported and the others continue.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eh_gym.errors import ConfigError

__all__ = ["Job", "cpu_cores", "job_slots", "run_jobs"]

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.1
_PATIENCE_S = 10.0  # how long a child that was asked to end may take
_TAIL = 15  # lines of the log of a job that failed


@dataclass(frozen=True)
class Job:
    """One run to be done.

    Attributes:
        name: Its name.
        title: Its name for a reader.
        command: The command that carries it out.
        log: The file to which its output is appended.
    """

    name: str
    title: str
    command: tuple[str, ...]
    log: Path


def cpu_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def job_slots(jobs: int, *, gpus: Sequence[str], per_job: int, cores: int, threads: int) -> list[dict[str, str]]:
    """Returns a slot for each job that runs at the same time: the environment variables that bind a job to its GPUs or cores.

    Args:
        jobs: The number of slots. 0 makes as many as the GPUs, or without GPUs the cores, are enough for.
        gpus: The names of the GPUs; empty to compute on the CPU. If there are more slots than GPUs, slots share GPUs.
        per_job: The number of GPUs that a job needs, or without GPUs of its processes.
        cores: The number of cores.
        threads: The number of threads of a process on the CPU; 0 for one per core.

    Raises:
        ConfigError: A job needs more GPUs than there are.

    >>> job_slots(0, gpus=["0", "1"], per_job=1, cores=8, threads=1)
    [{'CUDA_VISIBLE_DEVICES': '0'}, {'CUDA_VISIBLE_DEVICES': '1'}]
    """
    if not gpus:
        threads = threads or max(1, cores // per_job)
        return [{"OMP_NUM_THREADS": str(threads)}] * (jobs or max(1, cores // (threads * per_job)))
    groups = [",".join(gpus[i : i + per_job]) for i in range(0, len(gpus) - per_job + 1, per_job)]
    if not groups:
        raise ConfigError(
            f"a run needs {per_job} GPUs (--ranks), and {len(gpus)} are visible; "
            "lower that flag or set CUDA_VISIBLE_DEVICES"
        )
    return [{"CUDA_VISIBLE_DEVICES": groups[i % len(groups)]} for i in range(jobs or len(groups))]


def run_jobs(
    jobs: Sequence[Job],
    slots: Sequence[Mapping[str, str]],
    say: Callable[[str], None],
    *,
    done: int = 0,
    lock: int | None = None,
) -> dict[str, int]:
    """Runs all jobs in the given order, as many at the same time as there are slots.

    Call it from the main thread, and without other Python threads, because a child asks the kernel to kill it when the thread
    that started it ends.

    Args:
        jobs: The jobs.
        slots: The environment variables of each slot; see `job_slots`.
        say: Called with a line when a job starts and when it ends, and with the end of the log of one that failed.
        done: The number of jobs that were done before. The lines count them, too.
        lock: A file descriptor from `lock_folder`, which the children keep open.

    Returns:
        The exit code of each job by name. If it is below 0, it is the negative number of a signal.
    """
    waiting, free = list(jobs), list(range(len(slots)))
    running: dict[int, tuple[Job, subprocess.Popen[bytes], float]] = {}
    codes: dict[str, int] = {}
    total = done + len(jobs)
    try:
        while waiting or running:
            while waiting and free:
                job, slot = waiting.pop(0), free.pop(0)
                running[slot] = job, _start(job, slots[slot], lock), time.monotonic()
                say(f"start   {job.title}")
            for slot, (job, process, since) in list(running.items()):
                code = process.poll()
                if code is not None:
                    del running[slot]
                    free.append(slot)
                    codes[job.name] = code
                    seconds = time.monotonic() - since
                    if code:
                        say(_failure(job, seconds, code))
                    else:
                        done += 1
                        say(f"done    {job.title} in {seconds:.0f} s ({done} of {total})")
            time.sleep(_POLL_S)
    finally:
        _stop([process for _, process, _ in running.values()])
    return codes


def _failure(job: Job, seconds: float, code: int) -> str:
    """Says how a job failed, with the end of its log."""
    why = f"signal {-code}" if code < 0 else f"exit code {code}"
    log = job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
    return "\n        ".join([f"FAILED  {job.title} after {seconds:.0f} s with {why}; the end of {job.log}:", *log])


def _start(job: Job, environment: Mapping[str, str], lock: int | None) -> subprocess.Popen[bytes]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            job.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,  # a terminal's Ctrl-C and our SIGTERM would be two signals, and a second one saves nothing
            preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,
        )


def _die_with(parent: int) -> Callable[[], None]:
    """Returns a function that a child runs before its program, so that it is killed when its parent ends, for any reason.

    It works only on Linux. On other systems the runs of a killed sweep go on to their end, and until then the lock keeps
    another sweep out.
    """
    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork, since little is safe between fork and exec

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)

    return prepare


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _PATIENCE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
