"""Runs commands side by side on the cores or GPUs of this machine. On Linux they end with this process."""

import contextlib
import functools
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from eh_gym.errors import ConfigError
from eh_gym.processes import end_with

_PATIENCE_S = 10.0  # how long a child that was asked to end may take
_TAIL = 15  # lines of the log of a job that failed


class Job(NamedTuple):
    """A command to run: its name, its name for a reader, its words, and the file to which its output is appended."""

    name: str
    title: str
    command: Sequence[str]
    log: Path


def cpu_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def job_slots(jobs: int, *, gpus: Sequence[str], per_job: int, cores: int, threads: int) -> list[dict[str, str]]:
    """Returns a slot for each job that runs at the same time: the environment variables that bind a job to its GPUs or
    cores.

    There are as many as `jobs`. 0 makes as many as the `gpus`, or without these the `cores`, are enough for. A job
    has `per_job` of the GPUs; if there are more slots than that allows, they share GPUs. Without GPUs it has `per_job`
    processes of `threads` threads (0: one per core).

    >>> job_slots(0, gpus=["0", "1"], per_job=1, cores=8, threads=1)
    [{'CUDA_VISIBLE_DEVICES': '0'}, {'CUDA_VISIBLE_DEVICES': '1'}]
    """
    if not gpus:
        threads = threads or max(1, cores // per_job)
        return [{"OMP_NUM_THREADS": str(threads)}] * (jobs or max(1, cores // (threads * per_job)))
    groups = [",".join(gpus[i : i + per_job]) for i in range(0, len(gpus) - per_job + 1, per_job)]
    if not groups:
        raise ConfigError(
            f"a run needs {per_job} GPUs (--ranks), and {len(gpus)} are visible; lower that flag or set "
            "CUDA_VISIBLE_DEVICES"
        )
    return [{"CUDA_VISIBLE_DEVICES": groups[i % len(groups)]} for i in range(jobs or len(groups))]


def run_jobs(
    jobs: Sequence[Job], slots: Sequence[Mapping[str, str]], say: Callable[[str], None], *, done: int, lock: int
) -> dict[str, int]:
    """Runs all jobs in order, as many at the same time as there are slots. If one fails, the others go on.

    Call it from the main thread: a child asks the kernel to kill it when the thread that started it ends. `say` gets a
    line when a job starts and when it ends, which counts the `done` jobs of before, too, and the end of the log of one
    that failed. The children keep `lock` open, a file descriptor from `lock_folder`.

    Returns:
        The exit code of each job by name; the negative number of a signal that ended it.
    """
    waiting, free, total = list(jobs), list(slots), done + len(jobs)
    running: list[tuple[Job, subprocess.Popen[bytes], Mapping[str, str], float]] = []
    codes: dict[str, int] = {}
    try:
        while waiting or running:
            while waiting and free:
                job, slot = waiting.pop(0), free.pop(0)
                running.append((job, _start(job, slot, lock), slot, time.monotonic()))
                say(f"start   {job.title}")
            for one in [one for one in running if one[1].poll() is not None]:
                running.remove(one)
                job, process, slot, since = one
                free.append(slot)
                codes[job.name] = process.returncode
                after = f"{time.monotonic() - since:.0f} s"
                if process.returncode:
                    log = job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
                    why = (
                        f"FAILED  {job.title} after {after} with exit code {process.returncode}; the end of {job.log}:"
                    )
                    say("\n        ".join([why, *log]))
                else:
                    done += 1
                    say(f"done    {job.title} in {after} ({done} of {total})")
            time.sleep(0.1)
    finally:
        _stop([process for _, process, *_ in running])
    return codes


def _start(job: Job, slot: Mapping[str, str], lock: int) -> subprocess.Popen[bytes]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            job.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **slot},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            start_new_session=True,  # or Ctrl-C and our SIGTERM would be two signals, and a second one saves nothing
            preexec_fn=functools.partial(end_with, os.getpid()),
        )


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _PATIENCE_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.wait()
