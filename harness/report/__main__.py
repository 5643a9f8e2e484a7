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
from harness.evaluation_folder import KeptEvaluation, is_evaluation, read_evaluation
from harness.folders import make_folder
from harness.report.report import write_report
from harness.report.runs import Suite, all_runs, read_suites
from harness.report.trajectories import Log, write_trajectories

__all__ = ["Report", "main"]


@dataclass(frozen=True)
class Report:
    """Makes one HTML page of runs, sweeps and evaluations, with figures and tables, and one to read their episodes."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs (harness.grpo), of sweeps (harness.sweep), or of evaluations (harness.evaluate --out)."""
    out: Path = Path("report.html")
    """The page; the episodes' page is beside it, as NAME.episodes.html."""
    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 10_000
    """The most episodes that can be read, about: where more are logged, whole updates are left out, evenly over every run."""


def episode_logs(suites: Sequence[Suite], evaluations: Sequence[KeptEvaluation]) -> list[Log]:
    """What there is to read: of the runs, then of the evaluations."""
    logs = [Log(run.folder.name, arm.label, run.seed, suite.env, run.episodes) for suite, arm, run in all_runs(suites)]
    for kept in evaluations:
        get = kept.settings.get
        arm = f"{get('model') or get('policy')}, {get('split')}, K = {get('horizon')}"
        logs.append(Log(kept.folder.name, arm, int(get("seed", 0)), str(get("env")), [kept.episodes]))
    return logs


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    try:
        wanted = tyro.cli(Report, args=argv, prog="python -m harness.report")
        if wanted.out.is_dir():
            raise ConfigError(
                f"out must be a file, got the folder {wanted.out}; add a name: {wanted.out / 'report.html'}"
            )
        evaluations = [read_evaluation(path) for path in wanted.runs if is_evaluation(path)]
        runs = [path for path in wanted.runs if not is_evaluation(path)]
        suites = read_suites(runs) if runs or not evaluations else []
        make_folder(wanted.out.parent, "--out")
        page = wanted.out.with_suffix(".episodes.html")
        logs = episode_logs(suites, evaluations)
        episodes = write_trajectories(logs, page, report=wanted.out.name, most_episodes=wanted.episodes)
        write_report(suites, evaluations, wanted.out, trajectories=page.name, episodes=episodes)
    except EHError as error:
        console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    for path in (wanted.out, page) if episodes.shown else (wanted.out,):
        console.print(f"{path}  ({path.stat().st_size / 1e6:.1f} MB)", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
