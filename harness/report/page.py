"""Writes the report's page: the question, figures, tables and notes of each suite, then evaluations, runs and settings.

The page contains its style and script, so it needs no other file and no network. The templates escape every text, and
the Content-Security-Policy allows no other script.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from eh_gym.errors import ConfigError
from harness.evaluation.folder import KeptEvaluation
from harness.records.files import write_whole
from harness.report.drawings import Drawing, draw_evaluation_curves, draw_suite
from harness.report.tables import evaluation_table, run_table
from harness.sweep.analysis import suite_table
from harness.sweep.runs import Suite, all_runs
from harness.sweep.suites import suite_file


def write_page(out: Path, template: str, **values: Any) -> None:
    """Fills a template and writes the page, completely or not at all.

    The template also gets `style`, `script`, and the script's `digest` for the Content-Security-Policy.
    """
    loader = PackageLoader("harness.report")
    pages = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    style, script = ((files("harness.report") / "templates" / name).read_text() for name in ("page.css", "search.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values |= {"style": Markup(style), "script": Markup(script), "digest": Markup(digest)}
    page = pages.get_template(template).render(values)
    try:
        write_whole(out, page)
    except OSError as error:
        raise ConfigError(f"the page {out} can't be written ({error.strerror}); give another --out") from error


def write_report(
    suites: Sequence[Suite], evaluations: Sequence[KeptEvaluation], out: Path, *, episodes: str, shown: int, logged: int
) -> None:
    runs, address = all_runs(suites), episodes if shown else ""
    write_page(
        out,
        "report.html.jinja",
        episodes=address,
        shown=shown,
        logged=logged,
        seeds={run.seed for *_, run in runs},
        envs=dict.fromkeys(suite.env for suite in suites),
        sections=_sections(suites),
        evaluations=evaluation_table(evaluations, address, first=len(runs)),
        curves=draw_evaluation_curves(evaluations),
        runs=run_table(runs, address),
        evaluated={str(kept.folder): kept.settings for kept in evaluations},
    )


def draw(suites: Sequence[Suite], evaluations: Sequence[KeptEvaluation]) -> list[Drawing]:
    of_runs = [drawing for section in _sections(suites) for drawing in section["drawings"]]
    return [*of_runs, *draw_evaluation_curves(evaluations)]


def _sections(suites: Sequence[Suite]) -> list[dict[str, Any]]:
    return [
        {
            "title": f"{suite_file(suite.name).title} on {suite.env}",
            "about": suite_file(suite.name).about,
            "where": _where(suite),
            "missing": suite.missing,
            "drawings": draw_suite(suite, table),
            "tables": table.tables(),
            "notes": [f"{note[0].upper()}{note[1:]}." for note in table.notes],
            "settings": _same_in_all([run.config for arm in suite.arms for run in arm.runs]),
        }
        for suite, table in zip(suites, map(suite_table, suites), strict=True)
    ]


def _where(suite: Suite) -> str:
    words = [suite.env, f"model {suite.model}"]
    runs = [run for arm in suite.arms for run in arm.runs]
    get = _same_in_all([run.config for run in runs]).get
    words.append(f"{get('updates', '?')} updates of {get('tasks_per_update', '?')} x {get('group_size', '?')} episodes")
    if tasks := _same_in_all([run.result() for run in runs if run.result()]).get("tasks"):
        words.append(f"held-out: {tasks} tasks x k = {get('eval_rollouts', '?')} episodes")
        if (get("split") or "train") in (get("eval_split", ""), "all"):
            words[-1] += ", of the split that the runs train on"
    if suite.source:
        words.append(f"sweep {suite.source}")
    return "; ".join(words) + "."


def _same_in_all(values: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    first = values[0] if values else {}
    return {k: str(v) for k, v in first.items() if all(k in one and one[k] == v for one in values)}
