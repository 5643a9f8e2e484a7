"""Shows a sweep: a line when a run starts, and one when it ends."""

from __future__ import annotations

from rich.console import Console

from harness.experiments.jobs import Job, log_tail

__all__ = ["SweepDisplay"]


class SweepDisplay:
    """Shows the jobs of a sweep. It is a `harness.experiments.jobs.JobObserver`.

    Args:
        console: The console to print to.
        total: The number of runs of the sweep.
        done: The number of runs that have ended before.
        words: A name for the reader, by the name of a job.
    """

    def __init__(self, console: Console, *, total: int, done: int, words: dict[str, str]) -> None:
        self._console, self._total, self._done, self._words = console, total, done, words

    def started(self, job: Job) -> None:
        """Prints a line."""
        self._note(f"start   {self._words[job.name]}")

    def ended(self, job: Job, seconds: float, exit_code: int) -> None:
        """Prints a line, and after a failure also the end of the log."""
        if exit_code == 0:
            self._done += 1
            self._note(f"done    {self._words[job.name]} in {seconds:.0f} s ({self._done} of {self._total})")
            return
        why = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        self._note(f"FAILED  {self._words[job.name]} after {seconds:.0f} s with {why}; the end of {job.log}:")
        for line in log_tail(job).splitlines():
            self._note(f"        {line}")

    def _note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)
