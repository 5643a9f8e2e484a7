"""Writes the page of the logged episodes, to be read turn by turn: plain HTML, with an element for each episode."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.evaluation.folder import KeptEvaluation
from harness.records.episode_log import read_episodes, read_system_prompt
from harness.report.page import write_page
from harness.sweep.runs import Suite, all_runs
from harness.types.trajectory import ENDS


def write_episodes_page(
    suites: Sequence[Suite], evaluations: Sequence[KeptEvaluation], out: Path, *, report: str, most: int
) -> tuple[int, int]:
    """Writes the page, unless no episode is logged. Returns the number of episodes on it, and of all logged ones.

    If more than `most` episodes are logged, whole updates of every run are skipped, evenly. The last update of a run
    stays, and evaluations stay complete. The page links `report`, in the same folder.
    """
    logs = [
        (f"{run.folder.name}: {arm.label}, seed {run.seed} on {suite.env}", run.episodes)
        for suite, arm, run in all_runs(suites)
    ]
    for kept in evaluations:
        logs.append((f"{kept.folder.name}: {kept.title}, K = {kept.settings.get('horizon')}", [kept.episodes]))
    logged = sum(path.read_bytes().count(b"\n") for _, files in logs for path in files)
    if not logged:
        return 0, 0
    runs = [(title, list(_episodes(files, min(1.0, most / logged)))) for title, files in logs]
    shown = sum(len(episodes) for _, episodes in runs)
    write_page(out, "episodes.html.jinja", report=report, runs=runs, shown=shown, logged=logged)
    return shown, logged


def _episodes(files: Sequence[Path], share: float) -> Iterator[dict[str, Any]]:
    wanted = min(len(files), max(1, int(share * len(files))))
    for i in np.linspace(len(files) - 1, 0, wanted).round().astype(int)[::-1]:
        for line in read_episodes(files[i]):
            verdict = "success" if line["success"] else "failure" if line["end"] == "terminated" else "cut off"
            if line["end"] == "environment-error":
                verdict = "lost"
            system = read_system_prompt(files[i].parent, str(line.get("system_prompt") or ""))
            yield line | {"verdict": verdict, "end": ENDS.get(line["end"], line["end"]), "system": system}
