"""The tables of `--list`: the runs below some folders, and the clones that runs have left in the cache."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from eh_gym.errors import ConfigError, StateError
from envs.cache import cache_dir
from harness.evaluation.of_run import is_run
from harness.records.files import in_use, read_object
from harness.records.metrics import read_metrics
from harness.sweep.manifest import has_ended

_DEPTHS = ("", "*/", "*/*/", "*/*/*/")  # runs/, a sweep's folder, or a folder of sweeps


def list_runs(folders: Sequence[Path], console: Console) -> None:
    """Prints a row for each run, the newest last, and how to resume those that were stopped.

    Raises:
        ConfigError: There is no run.
    """
    found = {file.parent for folder in folders for depth in _DEPTHS for file in folder.glob(f"{depth}versions.json")}
    runs = sorted(filter(is_run, found), key=_last_change)
    if not runs:
        raise ConfigError(f"no run in {', '.join(map(str, folders))}; give the folder that holds the runs")
    rows = [(*_about(run), str(run)) for run in runs]
    _print(console, [("state", "updates", "success", "K", "tokens", "last change", "run"), *rows])
    for state, *_, run in rows:
        if state == "stopped":
            _say(console, f"resume: python -m harness.grpo --resume {run}")


def list_clones(console: Console) -> None:
    """Prints a row for each clone, the last used one last, and how to delete it. A run makes its clone again."""
    folder = cache_dir() / "clones"
    clones = sorted(folder.glob("[!.]*"), key=lambda clone: clone.stat().st_mtime)
    sizes = [sum(file.stat().st_size for file in clone.rglob("*")) for clone in clones]
    rows = [(_minute(c.stat().st_mtime), f"{n / 1e6:.1f}", c.name) for c, n in zip(clones, sizes, strict=True)]
    if rows:
        _print(console, [("last used", "MB", "clone"), *rows])
        _say(console, f"delete: rm -r {folder}/CLONE; a run that needs it makes it again")


def _about(run: Path) -> tuple[str, ...]:
    try:
        metrics, settings = run / "metrics.jsonl", read_object(run / "config.json")
        rows = read_metrics(metrics) if metrics.exists() else []
        last = rows[-1] if rows else {}
        success, state = last.get("rollout/success"), "running" if in_use(run) else "stopped"
        if has_ended(run):
            after, state = read_object(run / "evaluation.json").get("after") or {}, "ended"
            success = after["sampled"]["mean_at_k"] if after else success
    except StateError:
        return "damaged", "", "", "", "", _minute(_last_change(run))
    numbers = (success, ".3f"), (last.get("horizon/k"), ".0f"), (last.get("tokens/total"), ",.0f")
    texts = ("" if value is None else f"{value:{form}}" for value, form in numbers)
    return state, f"{len(rows)} of {settings['updates']}", *texts, _minute(_last_change(run))


def _last_change(run: Path) -> float:
    return max((run / name).stat().st_mtime for name in ("config.json", "metrics.jsonl") if (run / name).exists())


def _minute(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _print(console: Console, rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        _say(console, "  ".join(map(str.ljust, row, widths)).rstrip())


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
