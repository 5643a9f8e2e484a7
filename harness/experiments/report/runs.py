"""Reads the runs of sweeps and reports, and groups them into suites and arms.

The manifests of a sweep say which runs belong to which suite. Runs that are named one by one are grouped by environment and
model, and their arms are the settings in which they differ. `harness.experiments.analysis` computes numbers from the records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.make import HORIZONS
from harness.experiments.analysis import Arm, RunRecords, is_held_out
from harness.experiments.manifest import differing_settings, read_manifest
from harness.experiments.suite_table import SuiteTable, suite_table
from harness.experiments.suites import SUITES
from harness.run.episode_log import episode_files
from harness.run.files import check_fields, read_object
from harness.run.metrics import read_metrics
from harness.settings.horizon import settings_of

__all__ = ["Band", "StoredArm", "StoredRun", "Suite", "all_runs", "read_run", "read_suites", "tables_of"]

Band = tuple[float, float]
"""The ends of the plateau that a saturation suite found, in steps."""

_THRESHOLD = 0.5  # the paper's (Table "Sample efficiency on AppWorld")
_TOTALS = ("tokens/total", "time/total_s")  # every update has them, and the figures and tables need them

# What the figures and tables read of config.json, of evaluation.json, and of a result in it. Those of older versions have less.
_CONFIG = {"seed": int, "updates": int, "k0": int}
_EVALUATION = {"before": dict | None, "after": dict | None}
_RESULTS = {"sampled": dict | None, "greedy": dict | None}
_RESULT = {"mean_at_k": int | float, "best_at_k": int | float | None, "success_lengths": list | None}

# No result depends on these settings, or they identify the run.
_NO_MATTER = (
    *("seed", "recipe", "out", "run_dir", "resume", "device", "threads", "slots", "env_threads"),
    *("tokens_per_microbatch",),
    *("checkpoint_every", "keep_checkpoints", "sampler", "url", "rank_timeout_s"),
    *("env_workers", "ray_address", "ray_actor_slots", "ray_actor_cpus", "ray_timeout_s"),
    *("log", "log_project", "plan"),
)
# Settings that only some kinds of horizon read. For other kinds their values mean nothing. Evaluations read k_max, too.
_ONLY = {kind: settings_of(kind) - {"k_max"} for kind in (*HORIZONS, "tti")}


@dataclass(frozen=True)
class StoredRun(RunRecords):
    """A run as its folder has it, finished or not.

    Attributes:
        folder: The folder of the run.
        config: The settings of the run. Another version may have written them.
    """

    folder: Path
    config: Mapping[str, Any]

    @property
    def unfinished(self) -> str:
        """What the run still lacks, in words; empty for a run that has ended, which may have been before its last update."""
        planned = self.config["updates"]
        if self.evaluation:
            return ""
        if not self.rows:
            return "no metrics yet"
        return f"{len(self.rows)} of {planned} updates" if len(self.rows) < planned else "not evaluated yet"

    @property
    def episodes(self) -> list[Path]:
        """The files of the run's episode log."""
        return episode_files(self.folder / "episodes")


@dataclass(frozen=True)
class StoredArm:
    """The runs of one setting, which differ only in their seeds."""

    label: str
    settings: Mapping[str, Any]
    runs: tuple[StoredRun, ...]

    @property
    def ended(self) -> Arm:
        """The arm with the runs that have ended, for the tables. A run that was cut short has not saved tokens."""
        return Arm(self.label, self.settings, [run for run in self.runs if run.evaluation])


@dataclass(frozen=True)
class Suite:
    """Arms to compare.

    Attributes:
        source: The folder of the sweep; empty for runs that are named one by one.
        name: The suite of the sweep, or "runs".
        quick: Whether the sweep was ``--quick``.
        env: The id of the environment.
        model: The name of the model.
        threshold: The success rate up to which tokens are counted.
        base: The settings that all arms of a sweep share; empty for runs that are named one by one.
        arms: One arm for each setting.
        missing: A phrase for each run that has not ended.
    """

    source: str
    name: str
    quick: bool
    env: str
    model: str
    threshold: float
    base: Mapping[str, Any]
    arms: tuple[StoredArm, ...]
    missing: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        """Whether a run was evaluated during training. Then the success of every run in its course is held-out success."""
        return is_held_out(run.rows for arm in self.arms for run in arm.runs)

    def table(self, band: Band | None = None) -> SuiteTable:
        """Makes the suite's table. Runs that were named one by one, and suites of other versions, get that of the comparison."""
        name = self.name if self.name in SUITES else "comparison"
        return suite_table(name, [arm.ended for arm in self.arms], threshold=self.threshold, band=band)


def tables_of(suites: Sequence[Suite]) -> list[tuple[SuiteTable, Band | None]]:
    """Makes the table of each suite, with the band that a saturation suite of its sweep found with the same settings."""
    found = [(suite, suite.table()) for suite in suites]
    bands = [(suite, (float(p.low), float(p.high))) for suite, table in found if (p := table.plateau) is not None]
    tables: list[tuple[SuiteTable, Band | None]] = []
    for suite, table in found:
        band = next((band for of, band in bands if _same_settings(of, suite)), None)
        tables.append((table, None) if band is None or table.plateau else (suite.table(band), band))
    return tables


def _same_settings(suite: Suite, other: Suite) -> bool:
    return suite.source == other.source and not differing_settings(suite.base, other.base)


def read_suites(paths: Iterable[Path]) -> list[Suite]:
    """Reads run folders, sweep folders, and folders of sweeps. The suites of sweeps come first.

    Raises:
        ConfigError: A path is neither a run nor a sweep, or there is no path.
        StateError: A file is damaged.
    """
    suites: list[Suite] = []
    single: list[StoredRun] = []
    known: dict[Path, StoredRun] = {}
    for path in (one for given in paths for one in _sweeps_below(given) or [given]):
        manifests = sorted((path / "suites").glob("*.json"))
        if manifests:
            suites += [_read_suite(manifest, known) for manifest in manifests]
        elif (path / "suites").is_dir():
            raise ConfigError(f"the sweep {path} has no suite yet: {path / 'suites'} is empty")
        else:
            single.append(_known_run(path, known))
    if not suites and not single:
        raise ConfigError("no run is given; name run folders or sweep folders: python -m harness.report runs/EH-*")
    order = list(SUITES)
    suites.sort(key=lambda suite: order.index(suite.name) if suite.name in order else len(order))
    return suites + _put_together(list({id(run): run for run in single}.values()))


def read_run(folder: Path) -> StoredRun:
    """Reads one run folder.

    Raises:
        ConfigError: The folder holds no run.
        StateError: A file is damaged.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; give the folder of a run or of a sweep")
    if not (folder / "config.json").exists():
        inside = sorted(path.parent.name for path in folder.glob("*/config.json"))
        hint = (
            f"; it holds runs, give {folder}/*"
            if inside
            else "; give a folder that harness.grpo or harness.sweep wrote"
        )
        raise ConfigError(f"{folder} is not a run: it has no config.json{hint}")
    metrics, evaluation = folder / "metrics.jsonl", folder / "evaluation.json"
    config = read_object(folder / "config.json")
    if "env" not in config:
        raise ConfigError(
            f"{folder} is not a run: its config.json is a model's or another program's; give the folder of a run"
        )
    check_fields(folder / "config.json", config, _CONFIG)
    rows = read_metrics(metrics) if metrics.exists() else []
    for number, row in enumerate(rows, start=1):
        if lacking := [name for name in _TOTALS if row.get(name) is None]:
            raise StateError(f"line {number} of {metrics} has no {' and no '.join(lacking)}; restore the file")
    return StoredRun(
        seed=config["seed"],
        rows=rows,
        evaluation=_read_evaluation(evaluation) if evaluation.exists() else {},
        folder=folder,
        config=config,
    )


def _read_evaluation(path: Path) -> dict[str, Any]:
    evaluation = read_object(path)
    check_fields(path, evaluation, _EVALUATION)
    for results in filter(None, map(evaluation.get, _EVALUATION)):
        check_fields(path, results, _RESULTS)
        for result in filter(None, map(results.get, _RESULTS)):
            check_fields(path, result, _RESULT)
    return evaluation


def all_runs(suites: Iterable[Suite]) -> list[tuple[Suite, StoredArm, StoredRun]]:
    """Returns every run once, with the first suite and arm that contain it."""
    seen: dict[int, tuple[Suite, StoredArm, StoredRun]] = {}
    for suite in suites:
        for arm in suite.arms:
            for run in arm.runs:
                seen.setdefault(id(run), (suite, arm, run))
    return list(seen.values())


def _sweeps_below(folder: Path) -> list[Path]:
    """Returns the sweeps below a folder, such as those of the suite pretrained, one for each environment."""
    return [] if (folder / "suites").is_dir() else sorted(suites.parent for suites in folder.glob("*/suites"))


def _read_suite(path: Path, known: dict[Path, StoredRun]) -> Suite:
    manifest = read_manifest(path)
    arms: list[StoredArm] = []
    missing: list[str] = []
    for label, settings, folders in manifest.arms:
        begun = {seed: folder for seed, folder in folders.items() if (folder / "config.json").exists()}
        missing += [f"{label}, seed {seed}: not begun" for seed in folders if seed not in begun]
        runs = tuple(_known_run(folder, known) for folder in begun.values())
        missing += [f"{label}, seed {run.seed}: {run.unfinished}" for run in runs if run.unfinished]
        arms.append(StoredArm(label, settings, runs))
    m = manifest
    return Suite(
        str(path.parents[1]), m.suite, m.quick, m.env, m.model, m.threshold, m.base, tuple(arms), tuple(missing)
    )


def _put_together(runs: Sequence[StoredRun]) -> list[Suite]:
    """Makes suites of runs that are named one by one: one for each environment and model, with an arm for each setting."""
    by_kind: dict[tuple[str, str], list[StoredRun]] = {}
    for run in runs:
        by_kind.setdefault((str(run.config.get("env")), str(run.config.get("model"))), []).append(run)
    suites = []
    for (env, model), alike in by_kind.items():
        settings = [{k: v for k, v in run.config.items() if k not in _NO_MATTER} for run in alike]
        names = dict.fromkeys(name for one in settings for name in one)
        # A run of another version may be without a setting.
        differ = [name for name in names if len({json.dumps(one[name]) for one in settings if name in one}) > 1]
        members: dict[str, list[StoredRun]] = {}
        values: dict[str, dict[str, Any]] = {}
        for run, one in zip(alike, settings, strict=True):
            kind = str(one.get("wrapper"))
            differing = {name: one.get(name) for name in differ if _matters(name, kind)}
            label = ", ".join([kind, *(f"{k}={v}" for k, v in differing.items() if k != "wrapper")])
            if any(other.seed == run.seed for other in members.get(label, ())):
                label = f"{label} ({run.folder})"  # a mean over seeds has one run of each
            members.setdefault(label, []).append(run)
            values[label] = {"wrapper": kind, "k0": one.get("k0"), **differing}
        arms = tuple(StoredArm(label, values[label], tuple(runs)) for label, runs in members.items())
        missing = tuple(f"{run.folder.name}: {run.unfinished}" for run in alike if run.unfinished)
        suites.append(Suite("", "runs", False, env, model, _THRESHOLD, {}, arms, missing))
    return suites


def _matters(name: str, kind: str) -> bool:
    """Whether this kind of horizon uses a setting."""
    readers = [reader for reader, names in _ONLY.items() if name in names]
    return not readers or kind in readers


def _known_run(folder: Path, known: dict[Path, StoredRun]) -> StoredRun:
    """Returns the same object for the same folder, whatever path leads to it."""
    place = folder.resolve()
    if place not in known:
        known[place] = read_run(folder)
    return known[place]
