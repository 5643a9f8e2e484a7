"""Writes the report's page: the question, figures, tables and notes of each suite, then evaluations, runs and settings.

The templates escape every text. A page contains its style and script, so it needs no other file and no network, and its
Content-Security-Policy allows no other: a text could not run anything even if it were not escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from harness.evaluation.folder import KeptEvaluation
from harness.experiments.analysis import tables_of
from harness.experiments.figures import Drawing, draw_arm_curves, draw_evaluation_curves, draw_suite
from harness.experiments.runs import Suite, all_runs
from harness.experiments.suites import suite_file
from harness.experiments.tables import evaluation_table, run_table, score_table, suite_tables
from harness.run.files import write_whole

__all__ = ["draw", "templates", "write_report"]


@cache
def templates() -> Environment:
    """Returns the templates. They can call ``source(name)`` for the text of a script or style, and ``digest(name)``."""
    loader = PackageLoader("harness.experiments")
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.globals |= {"source": _source, "digest": _digest, "zip": zip}
    return made


def _source(name: str) -> Markup:
    return Markup((files("harness.experiments") / "templates" / name).read_text(encoding="utf-8"))


def _digest(name: str) -> str:
    """The hash by which a Content-Security-Policy knows an inline script, which must fill its element exactly."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(_source(name).encode()).digest()).decode()}'"


def write_report(
    suites: Sequence[Suite], evaluations: Sequence[KeptEvaluation], out: Path, *, episodes: str, shown: int, logged: int
) -> None:
    """Writes the page, completely or not at all.

    Args:
        suites: The runs that the page shows.
        evaluations: The evaluations that it shows. On the page of the episodes they follow the runs.
        out: The page.
        episodes: The name of the page with the episodes, which is in the same folder.
        shown: The number of episodes on that page; 0 if it was not written.
        logged: The number of episodes that were logged.
    """
    runs, page = all_runs(suites), templates().get_template("report.html.jinja")
    address = episodes if shown else ""
    text = page.render(
        episodes=address,
        shown=shown,
        logged=logged,
        seeds={run.seed for *_, run in runs},
        envs=dict.fromkeys(suite.env for suite in suites),
        sections=_sections(suites),
        evaluations=evaluation_table(evaluations, address, first=len(runs)),
        curves=draw_evaluation_curves(evaluations),
        scores=score_table(evaluations),
        runs=run_table(runs, address),
        evaluated={str(kept.folder): kept.settings for kept in evaluations},
    )
    write_whole(out, text)


def draw(suites: Sequence[Suite], evaluations: Sequence[KeptEvaluation]) -> list[Drawing]:
    """Draws the figures of the page, in its order."""
    of_runs = [drawing for section in _sections(suites) for drawing in section["drawings"]]
    return [*of_runs, *draw_evaluation_curves(evaluations)]


def _sections(suites: Sequence[Suite]) -> list[dict[str, Any]]:
    """Each suite, as the template needs it."""
    return [
        {
            "file": suite_file(suite.name),
            "where": _where(suite),
            "missing": suite.missing,
            "drawings": [*draw_suite(suite, table, band), *draw_arm_curves(suite)],
            "tables": suite_tables(table),
            "notes": [f"{note[0].upper()}{note[1:]}." for note in table.notes],
            "settings": _shared([run.config for arm in suite.arms for run in arm.runs]),
        }
        for suite, (table, band) in zip(suites, tables_of(suites), strict=True)
    ]


def _where(suite: Suite) -> str:
    """Says which environment, model and sizes a suite was run with, if its runs agree on them."""
    words = [suite.env, f"model {suite.model}"]
    runs = [run for arm in suite.arms for run in arm.runs]
    get = _shared([run.config for run in runs]).get
    words.append(f"{get('updates', '?')} updates of {get('tasks_per_update', '?')} x {get('group_size', '?')} episodes")
    if tasks := _shared([run.result() for run in runs if run.result()]).get("tasks"):
        words.append(f"held-out: {tasks} tasks x k = {get('eval_rollouts', '?')} episodes")
        if (get("split") or "train") in (get("eval_split", ""), "all"):
            words[-1] += ", of the split that the runs train on"
    if suite.source:
        words.append(f"sweep {suite.source}{', its quick setting' if suite.quick else ''}")
    return "; ".join(words) + "."


def _shared(values: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the entries that are the same in all `values`, as text."""
    first = values[0] if values else {}
    return {k: str(v) for k, v in first.items() if all(k in one and one[k] == v for one in values)}
