"""The command of the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from eh_gym.errors import ConfigError
from harness.terminal.texts import say

if TYPE_CHECKING:
    from harness.evaluation.folder import KeptEvaluation
    from harness.report.drawings import Drawing
    from harness.sweep.runs import Suite


@dataclass(frozen=True)
class Report:
    """Makes an HTML page of runs, sweeps and evaluations, and a second one to read their episodes; or lists runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUNS")]
    """The folders of runs (harness.grpo), of sweeps (harness.sweep), or of evaluations (the --out of
    harness.evaluate)."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List the runs in the folders instead; without a folder those in runs/, and the experts' clones."""
    out: Path | None = None
    """The page, by default report.html in the folder, or in the one that holds all folders. The page of the episodes is
    written next to it, as NAME.episodes.html."""
    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 500
    """The approximate maximum number of episodes to read. If more are logged, whole updates of every run are skipped,
    evenly."""


def report(wanted: Report, console: Console) -> None:
    if wanted.list:
        from harness.report.listing import list_clones, list_runs

        tell = partial(console.out, highlight=False)
        if not wanted.runs:
            list_clones(tell)
        return list_runs(wanted.runs or [Path("runs")], tell)
    runs = [path for path in wanted.runs if path.suffix != ".html"]  # runs/* has an earlier report, too
    common = Path(*runs) if len(runs) < 2 else Path(os.path.commonpath([path.absolute() for path in runs]))
    out = wanted.out or common / "report.html"
    if out.suffix not in (".html", ".htm") or out.is_dir():
        raise ConfigError(f"out must be a file that ends in .html, got {out}; change --out")
    from harness.records.files import make_folder
    from harness.report.episodes import write_episodes_page  # slow to import, and not needed for `--help`
    from harness.report.page import write_report

    suites, evaluations = _read(runs)
    make_folder(out.parent, "--out")
    page = out.with_suffix(".episodes.html")
    shown, logged = write_episodes_page(suites, evaluations, page, report=out.name, most=wanted.episodes)
    write_report(suites, evaluations, out, episodes=page.name, shown=shown, logged=logged)
    for path in (out, page) if shown else (out,):
        say(console, f"{path}  ({path.stat().st_size / 1e6:.1f} MB)")


def figures(*folders: str | Path) -> list[Drawing]:
    """Draws the figures of the page, each of which a notebook shows. The folders are those of `Report.runs`."""
    from harness.report.page import draw

    return draw(*_read([Path(folder) for folder in folders]))


def _read(folders: Sequence[Path]) -> tuple[list[Suite], list[KeptEvaluation]]:
    from harness.evaluation.folder import evaluations_in, read_evaluation
    from harness.sweep.runs import read_suites

    by_folder = {path: evaluations_in(path) for path in folders}
    evaluations = [read_evaluation(path) for paths in by_folder.values() for path in paths]
    runs = [path for path, paths in by_folder.items() if not paths]
    kinds = ("config.json", "*/config.json", "suites", "*/suites")
    empty = [path for path in runs if path.is_dir() and not any(any(path.glob(kind)) for kind in kinds)]
    if empty and len(empty) < len(by_folder):
        print(f"skipped: no run in {', '.join(map(str, empty))}")
        runs = [path for path in runs if path not in empty]
    return read_suites(runs) if runs or not evaluations else [], evaluations
