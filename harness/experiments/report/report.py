"""Writes the report: the question, figures, tables and notes of each suite, then the runs, definitions and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.evaluation.folder import KeptEvaluation
from harness.experiments.report.curves import draw_arm_curves, draw_evaluation_curves
from harness.experiments.report.drawing import Drawing
from harness.experiments.report.figures import draw_suite
from harness.experiments.report.page import environment
from harness.experiments.report.runs import Band, StoredRun, Suite, all_runs, tables_of
from harness.experiments.report.tables import (
    DEFINITIONS,
    Table,
    evaluation_table,
    run_table,
    score_tables,
    suite_tables,
)
from harness.experiments.report.trajectories import Episodes
from harness.experiments.suite_table import SuiteTable
from harness.run.files import write_whole

__all__ = ["draw", "write_report"]

_ABOUT = {
    "saturation": (
        "Saturation: success over K",
        "One model is trained under each fixed K. In the paper, success rises with K and then stays level, from K = 30 to 60 "
        "on AppWorld and from 20 to 50 on BFCL, while the cost keeps growing.",
    ),
    "convergence": (
        "Convergence: where K goes",
        "The elastic horizon starts from a small and from a large K, and is compared with two schedules. In the paper, both "
        "starts end within the plateau and below 50, where the schedules end.",
    ),
    "comparison": (
        "Comparison: elastic, fixed and scheduled horizons",
        "The success that each way to choose K reaches, and the tokens that it needs.",
    ),
    "percentile": (
        "Ablation: the statistic of the successes' lengths",
        "The elastic horizon with other statistics as its boundary. The paper uses the 90th percentile.",
    ),
    "headroom": (
        "Ablation: the headroom Δ",
        "The elastic horizon with more or fewer steps above the boundary. The paper uses 10.",
    ),
    "ema": (
        "Ablation: the smoothing α",
        "The elastic horizon with a faster or slower K. α = 1 means no smoothing. The paper uses 0.1.",
    ),
    "learning": (
        "Learning from each token",
        "The elastic horizon with other losses and samplers, against fixed horizons and schedules. The question is which "
        "default is as good as the best fixed K for fewer tokens.",
    ),
    "pretrained": (
        "A pretrained model",
        "A pretrained model under fixed horizons, schedules and the elastic horizon, from below and from above. The question "
        "is whether what the paper says holds where its models are small.",
    ),
    "recurring": (
        "Tasks that come again",
        "A horizon for each task, against fixed horizons, a schedule and one elastic horizon for all tasks.",
    ),
    "runs": ("Runs named one by one", "The names of the arms are the settings in which the runs differ."),
}


@dataclass(frozen=True)
class _Section:
    """One suite, as the template needs it."""

    id: str
    title: str
    where: str
    about: str
    missing: Sequence[str]
    drawings: Sequence[Drawing]
    tables: Sequence[Table]
    notes: Sequence[str]
    settings: Mapping[str, str]


def write_report(
    suites: Sequence[Suite],
    evaluations: Sequence[KeptEvaluation],
    out: Path,
    *,
    trajectories: str,
    episodes: Episodes,
) -> None:
    """Writes the page, completely or not at all.

    Args:
        suites: The runs that the page shows.
        evaluations: The evaluations that it shows. On the page of the episodes they follow the runs.
        out: The page.
        trajectories: The name of the page with the episodes, which is in the same folder.
        episodes: The number of episodes on that page; 0 if it was not written.
    """
    runs = all_runs(suites)
    page = quote(trajectories) if episodes.shown else ""
    links = [f"{page}#run={len(runs) + i}" if page else "" for i in range(len(evaluations))]
    text = (
        environment()
        .get_template("report.html.jinja")
        .render(
            title="Elastic Horizon: report",
            subtitle=_subtitle(suites, [run for *_, run in runs], evaluations),
            trajectories=trajectories,
            episodes=episodes,
            sections=_sections(suites),
            evaluations=evaluation_table(evaluations, links),
            curves=draw_evaluation_curves(evaluations),
            scores=score_tables(evaluations),
            runs=run_table(runs, page),
            definitions=DEFINITIONS,
            evaluated={str(kept.folder): kept.settings for kept in evaluations},
            versions=_shared([_versions(run) for *_, run in runs]),
        )
    )
    write_whole(out, text)


def draw(suites: Sequence[Suite], evaluations: Sequence[KeptEvaluation]) -> list[Drawing]:
    """Draws the figures of the page, in its order."""
    of_runs = [drawing for section in _sections(suites) for drawing in section.drawings]
    return [*of_runs, *draw_evaluation_curves(evaluations)]


def _sections(suites: Sequence[Suite]) -> list[_Section]:
    found = zip(suites, tables_of(suites), strict=True)
    return [_section(i, suite, table, band) for i, (suite, (table, band)) in enumerate(found)]


def _section(number: int, suite: Suite, table: SuiteTable, band: Band | None) -> _Section:
    title, about = _ABOUT.get(suite.name, (suite.name.capitalize(), ""))
    return _Section(
        id=f"{suite.name}-{number}",
        title=title,
        where=_where(suite),
        about=about,
        missing=suite.missing,
        drawings=[*draw_suite(suite, table, band), *draw_arm_curves(suite)],
        tables=suite_tables(suite, table),
        notes=[f"{note[0].upper()}{note[1:]}." for note in table.notes],
        settings=_shared([run.config for arm in suite.arms for run in arm.runs]),
    )


def _where(suite: Suite) -> str:
    """Says which environment, model and sizes a suite was run with, if its runs agree on them."""
    words = [suite.env, f"model {suite.model}"]
    shared = _shared([run.config for arm in suite.arms for run in arm.runs])
    get = shared.get
    if "updates" in shared and "tasks_per_update" in shared and "group_size" in shared:
        words.append(f"{get('updates')} updates of {get('tasks_per_update')} tasks x {get('group_size')} episodes")
    after = [(run.evaluation.get("after") or {}).get("sampled") for arm in suite.arms for run in arm.runs]
    if tasks := _shared([one for one in after if one]).get("tasks"):  # the split may have fewer than eval_tasks
        words.append(f"held-out: {tasks} tasks x k = {get('eval_rollouts', '?')} episodes")
        if (get("split") or "train") in (get("eval_split", ""), "all"):
            words[-1] += ", of the split that the runs train on"
    if suite.source:
        words.append(f"sweep {suite.source}{', its quick setting' if suite.quick else ''}")
    return "; ".join(words) + "."


def _subtitle(suites: Sequence[Suite], runs: Sequence[StoredRun], evaluations: Sequence[KeptEvaluation]) -> str:
    parts = []
    if runs:
        envs = ", ".join(dict.fromkeys(suite.env for suite in suites))
        models = ", ".join(dict.fromkeys(suite.model for suite in suites))
        seeds = len({run.seed for run in runs})
        parts.append(f"{_count(len(runs), 'run')} on {envs}; model {models}; {_count(seeds, 'seed')}.")
    if evaluations:
        parts.append(f"{_count(len(evaluations), 'evaluation')}.")
    return " ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _shared(values: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the entries that are the same in all `values`, as text."""
    first = values[0] if values else {}
    return {k: str(v) for k, v in first.items() if all(k in one and one[k] == v for one in values)}


def _versions(run: StoredRun) -> Mapping[str, Any]:
    """Returns the package versions of a run. They are empty if the file is missing or damaged, since no number depends on it."""
    try:
        found = json.loads((run.folder / "versions.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
