"""Reads the runs of sweeps and reports, finished or not, and groups them into suites and arms.

A sweep's manifests say which runs belong to which suite. Runs that are named one by one are grouped by environment and
model, and their arms are the settings in which they differ.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from eh_gym.errors import ConfigError
from harness.records.episode_log import episode_files
from harness.records.files import read_object
from harness.records.metrics import read_metrics
from harness.settings.grpo import GRPOConfig, flat_settings
from harness.settings.section import Changes, marks
from harness.sweep.manifest import has_ended
from harness.sweep.suites import SUITES

_THRESHOLD = 0.5  # the paper's (Table "Sample efficiency on AppWorld")


@dataclass(frozen=True, eq=False)
class SweptRun:
    """A run as its folder has it."""

    folder: Path
    config: Mapping[str, Any]
    rows: pd.DataFrame  # the metrics, a row per update; a value that is not known is NaN
    evaluation: Mapping[str, Any]  # the content of evaluation.json; empty if the run has not ended

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def unfinished(self) -> str:
        """What the run still lacks, in words; empty for one that has ended, maybe early."""
        if self.evaluation:
            return ""
        if self.rows.empty:
            return "no metrics yet"
        done, planned = len(self.rows), self.config["updates"]
        return f"{done} of {planned} updates" if done < planned else "not evaluated yet"

    @property
    def episodes(self) -> list[Path]:
        return episode_files(self.folder / "episodes")

    def metric(self, *names: str) -> pd.Series:
        values = pd.Series(dtype=float)
        for name in names:
            values = values.combine_first(self.rows[name].dropna()) if name in self.rows else values
        return values

    def result(self, when: str = "after", how: str = "sampled") -> Mapping[str, Any]:
        """Returns the held-out result "before" or "after" training, "sampled" or "greedy"; empty if there is none."""
        return (self.evaluation.get(when) or {}).get(how) or {}


@dataclass(frozen=True, eq=False)
class Arm:
    """The runs of one setting, which differ only in their seeds."""

    label: str
    settings: Mapping[str, Any]
    runs: Sequence[SweptRun]

    @property
    def ended(self) -> list[SweptRun]:
        """The runs that have ended, for tables. A run that was cut short has not saved tokens."""
        return [run for run in self.runs if run.evaluation]

    @property
    def fixed_k(self) -> int | None:
        return int(self.settings["k0"]) if self.settings.get("wrapper") == "fixed" else None


@dataclass(frozen=True, eq=False)
class Suite:
    """Arms to compare: a suite of the sweep in the folder `source`, or "runs" that are named one by one, without a
    source.

    `threshold` is the success rate up to which tokens are counted, and `missing` has a phrase for each run that has not
    ended.
    """

    source: str
    name: str
    env: str
    model: str
    threshold: float
    arms: Sequence[Arm]
    missing: Sequence[str]

    @property
    def held_out(self) -> bool:
        """Whether a run was evaluated during training: then the success of all runs is that on held-out tasks."""
        return any(len(run.metric("evaluation/mean_at_k")) for arm in self.arms for run in arm.runs)


def read_suites(paths: Iterable[Path]) -> list[Suite]:
    """Reads run folders, sweep folders, and folders of sweeps. The suites of sweeps come first."""
    suites: list[Suite] = []
    single: dict[SweptRun, None] = {}
    known = cache(read_run)

    def read(folder: Path) -> SweptRun:
        return known(folder.resolve())  # the same run for the same folder, whatever path leads to it

    for given in paths:
        below = [] if (given / "suites").is_dir() else sorted(folder.parent for folder in given.glob("*/suites"))
        for path in below or [given]:
            manifests = sorted((path / "suites").glob("*.json"))
            suites += [_read_suite(manifest, read) for manifest in manifests]
            if not manifests and (path / "suites").is_dir():
                raise ConfigError(f"the sweep {path} has no suite yet: {path / 'suites'} is empty")
            if not manifests:
                single[read(path)] = None
    if not suites and not single:
        raise ConfigError("no run is given; name run folders or sweep folders: python -m harness.report runs/EH-*")
    suites.sort(key=lambda suite: SUITES.index(suite.name) if suite.name in SUITES else len(SUITES))
    return suites + _put_together(list(single))


def read_run(folder: Path) -> SweptRun:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; give the folder of a run or of a sweep")
    if not (folder / "config.json").exists():
        inside = any(folder.glob("*/config.json"))
        hint = f"it holds runs, give {folder}/*" if inside else "give a folder of harness.grpo or harness.sweep"
        raise ConfigError(f"{folder} is not a run: it has no config.json; {hint}")
    config = flat_settings(read_object(folder / "config.json"))
    if "env" not in config:
        raise ConfigError(f"{folder} is not a run: its config.json is another program's; give the folder of a run")
    rows = read_metrics(folder / "metrics.jsonl")
    table = pd.DataFrame(rows, dtype=float, index=[row["update"] for row in rows])
    return SweptRun(folder, config, table, read_object(folder / "evaluation.json") if has_ended(folder) else {})


def all_runs(suites: Iterable[Suite]) -> list[tuple[Suite, Arm, SweptRun]]:
    first: dict[SweptRun, tuple[Suite, Arm, SweptRun]] = {}
    for suite in suites:
        for arm in suite.arms:
            for run in arm.runs:
                first.setdefault(run, (suite, arm, run))
    return list(first.values())


def _read_suite(path: Path, read: Callable[[Path], SweptRun]) -> Suite:
    c = read_object(path)
    arms: list[Arm] = []
    missing: list[str] = []
    for listed in c["arms"]:
        label, folders = listed["label"], {run["seed"]: path.parent / run["folder"] for run in listed["runs"]}
        begun = {seed: folder for seed, folder in folders.items() if (folder / "config.json").exists()}
        missing += [f"{label}, seed {seed}: not begun" for seed in folders if seed not in begun]
        arm = Arm(label, listed["settings"], [read(folder) for folder in begun.values()])
        missing += [f"{label}, seed {run.seed}: {run.unfinished}" for run in arm.runs if run.unfinished]
        arms.append(arm)
    return Suite(str(path.parents[1]), c["suite"], c["env"], c["model"], c["threshold"], arms, missing)


def _put_together(runs: Sequence[SweptRun]) -> list[Suite]:
    marked, alike_in = marks(GRPOConfig), (Changes.DRAWS, Changes.SETUP, Changes.MACHINE)
    by_kind: dict[tuple[str, str], list[SweptRun]] = {}
    for run in runs:
        played = run.config.get("agent") or run.config.get("env")
        by_kind.setdefault((str(played), str(run.config.get("model"))), []).append(run)
    suites = []
    for (env, model), alike in by_kind.items():
        settings = [{k: v for k, v in run.config.items() if marked.get(k) not in alike_in} for run in alike]
        names = dict.fromkeys(name for one in settings for name in one)
        # Another wrapper or sampler has other settings.
        differ = [name for name in names if len({json.dumps(one[name]) for one in settings if name in one}) > 1]
        arms: dict[str, Arm] = {}
        for run, one in zip(alike, settings, strict=True):
            differing = {name: one.get(name) for name in dict.fromkeys(["wrapper", *differ])}
            label = ", ".join(f"{k}={v}" for k, v in differing.items()).removeprefix("wrapper=")
            others = arms[label].runs if label in arms else ()
            if any(other.seed == run.seed for other in others):
                label, others = f"{label} ({run.folder})", ()  # a mean over seeds has one run of each
            arms[label] = Arm(label, {"k0": one.get("k0"), **differing}, [*others, run])
        missing = [f"{run.folder.name}: {run.unfinished}" for run in alike if run.unfinished]
        suites.append(Suite("", "runs", env, model, _THRESHOLD, list(arms.values()), missing))
    return suites
