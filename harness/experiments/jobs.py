"""Runs side by side, one subprocess each, on the cores or GPUs at hand; they end when this process does.

A run that fails is reported and the others go on. Left out: other machines, and any knowledge of what a run does.
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
from typing import Protocol

from eh_gym.errors import ConfigError

__all__ = ["Job", "JobObserver", "cpu_cores", "job_slots", "log_tail", "run_jobs", "visible_gpus"]

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.1
_PATIENCE_S = 10.0  # for a child that was asked to end, and for the children of a killed sweep


@dataclass(frozen=True)
class Job:
    """One run to be done.

    Attributes:
        name: What the display calls it.
        command: What to start.
        log: Where its output goes, after what is there.
    """

    name: str
    command: tuple[str, ...]
    log: Path


class JobObserver(Protocol):
    """Hears what happens to the jobs."""

    def started(self, job: Job) -> None:
        """A job's process was started."""

    def running(self, jobs: Sequence[Job]) -> None:
        """Called several times a second with the jobs that run."""

    def ended(self, job: Job, seconds: float, exit_code: int) -> None:
        """A job's process has ended; below 0 the exit code is a signal's number."""


def cpu_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    import torch  # not needed for the help of a sweep, and slow to import

    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names.split(",")[:count] if names and count else [str(i) for i in range(count)]


def job_slots(jobs: int, *, gpus: Sequence[str], gpus_per_job: int, cores: int, threads: int) -> list[dict[str, str]]:
    """The places in which jobs run, each as the environment variables that make it so.

    Args:
        jobs: How many at once; 0 for as many as there are GPUs for, or without GPUs cores.
        gpus: The GPUs, none to compute on the CPU. More jobs than they are enough for share them.
        gpus_per_job: How many a job needs.
        cores: The cores.
        threads: Threads of a job on the CPU; 0 for as many as there are cores.

    Raises:
        ConfigError: A job needs more GPUs than there are.

    >>> job_slots(0, gpus=["0", "1"], gpus_per_job=1, cores=8, threads=1)
    [{'CUDA_VISIBLE_DEVICES': '0'}, {'CUDA_VISIBLE_DEVICES': '1'}]
    """
    if not gpus:
        threads = threads or cores
        return [{"OMP_NUM_THREADS": str(threads)}] * (jobs or max(1, cores // threads))
    groups = [",".join(gpus[i : i + gpus_per_job]) for i in range(0, len(gpus) - gpus_per_job + 1, gpus_per_job)]
    if not groups:
        raise ConfigError(
            f"a run needs {gpus_per_job} GPUs (--tensor-parallel), and {len(gpus)} are visible; "
            "lower --tensor-parallel or set CUDA_VISIBLE_DEVICES"
        )
    return [{"CUDA_VISIBLE_DEVICES": groups[i % len(groups)]} for i in range(jobs or len(groups))]


def run_jobs(
    jobs: Sequence[Job], slots: Sequence[Mapping[str, str]], observer: JobObserver, *, lock: int | None = None
) -> dict[str, int]:
    """Runs every job, as many at once as there are slots, in the given order.

    Call it from the main thread, without other Python threads: a child asks the kernel to die with the thread that
    started it.

    Args:
        jobs: What to do.
        slots: Environment variables of each place; see `job_slots`.
        observer: Hears what happens.
        lock: A file descriptor that the children keep open, from `lock_folder`.

    Returns:
        The exit code of each job by name; below 0 it is a signal's number.
    """
    waiting, free = list(jobs), list(range(len(slots)))
    running: dict[int, tuple[Job, subprocess.Popen[bytes], float]] = {}
    codes: dict[str, int] = {}
    try:
        while waiting or running:
            while waiting and free:
                job, slot = waiting.pop(0), free.pop(0)
                running[slot] = job, _start(job, slots[slot], lock), time.monotonic()
                observer.started(job)
            observer.running([job for job, _, _ in running.values()])
            for slot, (job, process, since) in list(running.items()):
                code = process.poll()
                if code is not None:
                    del running[slot]
                    free.append(slot)
                    codes[job.name] = code
                    observer.ended(job, time.monotonic() - since, code)
            time.sleep(_POLL_S)
    finally:
        _stop([process for _, process, _ in running.values()])
    return codes


def log_tail(job: Job, lines: int = 15) -> str:
    """The last lines of a job's log."""
    if not job.log.exists():
        return ""
    return "\n".join(job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


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
            preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,
        )


def _die_with(parent: int) -> Callable[[], None]:
    """What a child runs before its program: it is killed when its parent ends, however that ends.

    On other systems than Linux a killed sweep's runs go on to their end, and the lock keeps the next sweep waiting.
    """
    libc = ctypes.CDLL(None, use_errno=True)  # loaded here: as little as possible happens between fork and exec

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:  # it ended before the call
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
