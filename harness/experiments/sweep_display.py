"""Shows a sweep: a bar over all runs, and a bar for each run in progress. Without a terminal it prints only lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from harness.experiments.jobs import Job, log_tail

__all__ = ["SweepDisplay"]


class SweepDisplay:
    """Shows the jobs of a sweep. It is a `harness.experiments.jobs.JobObserver` and a context manager.

    Args:
        console: The console to print to.
        total: The number of runs of the sweep.
        done: The number of runs that have ended before.
        words: A name for the reader, by the name of a job.
        metrics: The ``metrics.jsonl`` of the run, by the name of a job.
        updates: The number of updates of a run.
    """

    def __init__(
        self,
        console: Console,
        *,
        total: int,
        done: int,
        words: dict[str, str],
        metrics: dict[str, Path],
        updates: int,
    ) -> None:
        self._console, self._total, self._done = console, total, done
        self._words, self._metrics, self._updates = words, metrics, updates
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # `running` refreshes it, because children must not be forked while another thread exists.
        self._progress = Progress(
            *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
        )
        self._all = self._progress.add_task("runs", total=total, completed=done)
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> SweepDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def started(self, job: Job) -> None:
        """Prints a line and adds a bar."""
        self._bars[job.name] = self._progress.add_task(self._words[job.name], total=self._updates)
        self._note(f"start   {self._words[job.name]}")

    def running(self, jobs: Sequence[Job]) -> None:
        """Moves the bars, on a terminal."""
        if self._progress.disable:
            return
        for job in jobs:
            updates, state = _last_update(self._metrics[job.name])
            self._progress.update(
                self._bars[job.name], completed=updates, description=f"{self._words[job.name]} {state}"
            )
        self._progress.refresh()

    def ended(self, job: Job, seconds: float, exit_code: int) -> None:
        """Prints a line, and after a failure also the end of the log."""
        self._progress.remove_task(self._bars.pop(job.name))
        if exit_code == 0:
            self._done += 1
            self._progress.update(self._all, completed=self._done)
            self._note(f"done    {self._words[job.name]} in {seconds:.0f} s ({self._done} of {self._total})")
            return
        why = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        self._note(f"FAILED  {self._words[job.name]} after {seconds:.0f} s with {why}; the end of {job.log}:")
        for line in log_tail(job).splitlines():
            self._note(f"        {line}")

    def _note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def _last_update(path: Path) -> tuple[int, str]:
    """Returns the number of updates and the state of the last one. The last line of the file may be unfinished."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            row = json.loads(file.read().split(b"\n")[-2])
        k, success = row.get("horizon/k"), row.get("rollout/success")
        state = " ".join(
            [f"K {k:.0f}" if k is not None else "", f"success {success:.2f}" if success is not None else ""]
        )
        return int(row["update"]) + 1, state.strip()
    except (OSError, IndexError, ValueError, KeyError):
        return 0, "starting"
