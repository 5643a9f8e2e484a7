"""The command line of `python -m harness.report`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from eh_gym.errors import ConfigError, EHError
from harness.report.report import write_report
from harness.report.runs import all_runs, read_suites
from harness.report.trajectories import write_trajectories

__all__ = ["Report", "main"]


@dataclass(frozen=True)
class Report:
    """Makes one HTML page of runs or sweeps, with figures and tables, and one to read their episodes turn by turn."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs (harness.grpo) or of sweeps (harness.sweep)."""
    out: Path = Path("report.html")
    """The page; the episodes' page is beside it, as NAME.episodes.html."""
    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 10_000
    """The most episodes that can be read, about: where more are logged, whole updates are left out, evenly over every run."""


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    try:
        wanted = tyro.cli(Report, args=argv, prog="python -m harness.report")
        if wanted.out.is_dir():
            raise ConfigError(
                f"out must be a file, got the folder {wanted.out}; add a name: {wanted.out / 'report.html'}"
            )
        suites = read_suites(wanted.runs)
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        page = wanted.out.with_suffix(".episodes.html")
        episodes = write_trajectories(all_runs(suites), page, report=wanted.out.name, most_episodes=wanted.episodes)
        write_report(suites, wanted.out, trajectories=page.name, episodes=episodes)
    except EHError as error:
        console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    for path in (wanted.out, page) if episodes.shown else (wanted.out,):
        console.print(f"{path}  ({path.stat().st_size / 1e6:.1f} MB)", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
