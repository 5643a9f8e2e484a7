"""The tables of the report: each suite beside the paper's numbers, runs, evaluations and scores."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from harness.evaluation.folder import KeptEvaluation
from harness.records.metrics import graded
from harness.sweep.analysis import SuiteTable, success_curve
from harness.sweep.runs import Arm, Suite, SweptRun
from harness.sweep.suites import suite_file


class Page(NamedTuple):
    """A table of the page: a caption with units, texts with labels as index, and a link for each label or ""."""

    caption: str
    texts: pd.DataFrame
    links: Sequence[str] = ()


def suite_tables(table: SuiteTable) -> list[Page]:
    """Returns the tables of a suite. If the paper has a table with the same arms, its columns follow."""
    file = suite_file(table.suite)
    pages = []
    for i, keys in enumerate(file.columns):
        texts, caption = table.cells(keys), "Mean ± standard deviation over n seeds."
        if i < len(file.paper):
            paper = file.paper[i]
            headings = [f"paper: {column}" for column in paper["columns"]]
            theirs = pd.DataFrame.from_dict(paper["rows"], orient="index", columns=headings)
            texts, title = texts.join(theirs).fillna(""), paper["title"][0].upper() + paper["title"][1:]
            caption += f" {title}; the tasks and models differ, so compare order and shape, not level."
        pages.append(Page(caption, texts))
    return pages


def run_table(runs: Sequence[tuple[Suite, Arm, SweptRun]], episodes: str) -> Page:
    """Returns a table with a row for each run, with links to the page `episodes`, if there is one."""
    rows = []
    for suite, arm, run in runs:
        k, last = run.metric("horizon/k_real", "horizon/k"), run.rows.tail(1)
        curve = success_curve(run, held_out=suite.held_out)
        rows.append(
            {
                "run": run.folder.name,
                "arm": f"{suite.name}: {arm.label}",
                "seed": str(run.seed),
                "updates": f"{len(run.rows)} of {run.config['updates']}",
                "last K": "".join(f"{value:.1f}" for value in k.tail(1)),
                "success %": "".join(f"{100 * value:.1f}" for value in curve["success"].tail(1)),
                "mean@k %": f"{100 * run.result()['mean_at_k']:.1f}" if run.result() else "",
                **_of_kinds(run.result()),
                **({"mean reward": reward} if run.result() and (reward := graded(run.result())) else {}),
                "tokens": "".join(f"{value:,.0f}" for value in last.get("tokens/total", ())),
                "seconds": "".join(f"{value:,.0f}" for value in last.get("time/total_s", ())),
                "state": run.unfinished or "ended",
            }
        )
    caption = "Every run. Success % is the last known success during training; mean@k % is measured after training."
    links = [f"{episodes}#run-{i}" if episodes and run.episodes else "" for i, (*_, run) in enumerate(runs)]
    return _page(caption, rows, links)


def evaluation_table(evaluations: Sequence[KeptEvaluation], episodes: str, *, first: int) -> Page:
    """Returns a table with a row for each evaluation, finished or not. Links to their episodes count from `first`."""
    rows = []
    for kept in evaluations:
        result, k = kept.result, str(kept.settings.get("horizon"))
        row = {"evaluation": str(kept.folder), "what": kept.title, "K": k, "state": "not ended"}
        if result is not None:
            for kind in ("mean", "best"):
                low, high = (100 * end for end in result[f"{kind}_interval"])
                row[f"{kind}@k %"] = f"{100 * result[f'{kind}_at_k']:.1f} ({low:.1f} to {high:.1f})"
            length = result.get("length_success_mean")
            row |= _of_kinds(result)
            row["steps"] = "" if length is None else f"{length:.1f}"
            row |= {"mean reward": reward} if (reward := graded(result)) else {}
            row["truncated %"] = f"{100 * result['truncated']:.1f}"
            row |= {"tasks x k": f"{result['tasks']} x {result['rollouts']}", "state": "ended"}
            if flags := result.get("not_official"):
                row["state"] += f"; not official: {', '.join(flags)}"
        rows.append(row)
    caption = "Every evaluation of this report, with 95 % intervals. Steps is the mean of the successes."
    return _page(caption, rows, [f"{episodes}#run-{first + i}" if episodes else "" for i in range(len(rows))])


def _of_kinds(result: Mapping[str, Any]) -> dict[str, str]:
    return {f"{p['name']} %": f"{100 * p['mean_at_k']:.1f}" for p in result.get("parts", ()) if p["kind"] == "kind"}


def _page(caption: str, rows: Sequence[dict[str, str]], links: Sequence[str] = ()) -> Page:
    texts = pd.DataFrame(rows).fillna("")
    return Page(caption, texts.set_index(texts.columns[0]) if rows else texts, links)
