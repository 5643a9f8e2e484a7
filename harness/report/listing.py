"""What `--list` prints: the runs in some folders, and the clones in the cache."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

import pandas as pd

from envs.cache import cache_dir
from harness.evaluation.config_from_run import is_run
from harness.records.files import in_use
from harness.report.tables import run_table
from harness.sweep.runs import all_runs, read_suites

_DEPTHS = ("", "*/", "*/*/", "*/*/*/")  # a run, or a folder of runs, of sweeps, of a sweep's suites


def list_runs(folders: Sequence[Path], tell: Callable[[str], None]) -> None:
    begun = {file.parent for folder in folders for depth in _DEPTHS for file in folder.glob(f"{depth}versions.json")}
    runs = all_runs(read_suites(sorted(filter(is_run, begun)) or folders))
    _, headings, rows, _ = run_table(runs, "")
    table = pd.DataFrame(rows, columns=headings).drop(columns=["run", "arm", "seed", "seconds"])
    table["state"] = [("stopped", "running")[in_use(run.folder)] if run.unfinished else "ended" for *_, run in runs]
    table["last change"] = [_minute(max(run.folder.glob("*.json*"), key=os.path.getmtime)) for *_, run in runs]
    table["run"] = [os.path.relpath(run.folder) for *_, run in runs]
    tell(table.sort_values("last change").to_string(index=False))
    for path in table["run"][table["state"] == "stopped"]:
        tell(f"resume: python -m harness.grpo --resume {quote(path)}")


def list_clones(tell: Callable[[str], None]) -> None:
    folder = cache_dir() / "clones"
    for clone in sorted(folder.glob("[!.]*"), key=os.path.getmtime):
        size = sum(map(os.path.getsize, clone.rglob("*"))) / 1e6
        tell(f"{_minute(clone)}  {size:8.1f} MB  {clone.name}")
    tell(f"These clones of experts are in {folder}. Delete one with rm -r; a run makes it again.")


def _minute(path: Path) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(path)))
