"""`python -m harness.report`: writes a page with the figures and tables of runs, and a page with their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from eh_gym.errors import ConfigError
from harness.settings.command_line import errors_in_one_line, parse

if TYPE_CHECKING:
    from harness.evaluation.folder import KeptEvaluation
    from harness.experiments.report.drawing import Drawing
    from harness.experiments.report.runs import Suite

__all__ = ["Report", "figures", "main", "report"]


@dataclass(frozen=True)
class Report:
    """Makes an HTML page of runs, sweeps and evaluations, with figures and tables, and a second page to read their episodes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER [FOLDER ...]")]
    """The folders of runs (harness.grpo), of sweeps (harness.sweep), or of evaluations (the --out of
    harness.evaluate)."""
    out: Path = Path("report.html")
    """The page. The page of the episodes is written next to it, as NAME.episodes.html."""
    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 10_000
    """The approximate maximum number of episodes to read. If more are logged, whole updates of every run are skipped, evenly."""


def report(wanted: Report, console: Console) -> None:
    """Writes the pages and prints where they are.

    Raises:
        ConfigError: A folder holds no run, sweep or evaluation, or the page can't be written.
        StateError: A file in a folder is damaged.
    """
    if wanted.out.is_dir():
        raise ConfigError(f"out must be a file, got the folder {wanted.out}; add a name: {wanted.out / 'report.html'}")
    if wanted.out.suffix not in (".html", ".htm"):
        raise ConfigError(f"out must end in .html, got {wanted.out}; change --out")

    from harness.experiments.report.report import write_report  # slow to import, and `--help` needs none of it
    from harness.experiments.report.trajectories import episode_logs, write_trajectories
    from harness.run.files import make_folder

    suites, evaluations = _read(wanted.runs)
    make_folder(wanted.out.parent, "--out")
    page = wanted.out.with_suffix(".episodes.html")
    logs = episode_logs(suites, evaluations)
    episodes = write_trajectories(logs, page, report=wanted.out.name, most_episodes=wanted.episodes)
    write_report(suites, evaluations, wanted.out, trajectories=page.name, episodes=episodes)
    for path in (wanted.out, page) if episodes.shown else (wanted.out,):
        console.print(f"{path}  ({path.stat().st_size / 1e6:.1f} MB)", highlight=False, soft_wrap=True, markup=False)


def figures(*folders: str | Path) -> list[Drawing]:
    """Draws the figures of the page, each of which a notebook shows.

    Args:
        folders: As in `Report.runs`.

    Raises:
        ConfigError: A folder holds no run, sweep or evaluation.
        StateError: A file in a folder is damaged.

    Example:
        >>> from harness.report import figures
        >>> [figure.title for figure in figures("runs/EH-Cabinet-v0-elastic-seed0")]  # doctest: +SKIP
        ['Success by tokens', 'Success by update', 'K by update', …]
    """
    from harness.experiments.report.report import draw

    return draw(*_read([Path(folder) for folder in folders]))


def _read(folders: Sequence[Path]) -> tuple[list[Suite], list[KeptEvaluation]]:
    from harness.evaluation.folder import evaluations_in, read_evaluation
    from harness.experiments.report.runs import read_suites

    found = {path: evaluations_in(path) for path in folders}
    evaluations = [read_evaluation(path) for paths in found.values() for path in paths]
    runs = [path for path, paths in found.items() if not paths]
    return read_suites(runs) if runs or not evaluations else [], evaluations


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    with errors_in_one_line(console):
        report(parse(Report(runs=tyro.MISSING), argv, prog="python -m harness.report"), console)


if __name__ == "__main__":
    main()
