"""The tables of the report that no sweep prints: its runs and its evaluations."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.evaluation.folder import KeptEvaluation
from harness.records.metrics import mean_reward
from harness.sweep.analysis import success_curve
from harness.sweep.runs import Arm, Suite, SweptRun
from harness.terminal.texts import Table, table_of_rows


def run_table(runs: Sequence[tuple[Suite, Arm, SweptRun]], episodes: str) -> Table:
    rows = []
    for suite, arm, run in runs:
        curve = success_curve(run, held_out=suite.held_out)
        rows.append(
            {
                "run": run.folder.name,
                "arm": f"{suite.name}: {arm.label}",
                "seed": str(run.seed),
                "updates": f"{len(run.rows)} of {run.config['updates']}",
                "last K": _last(run.metric("horizon/k"), ".0f"),
                "success %": _last(100 * curve["success"], ".1f"),
                "mean@k %": _share(run.result(), "mean") if run.result() else "",
                **_of_kinds(run.result()),
                **mean_reward(run.result()),
                "tokens": _last(run.metric("tokens/total"), ",.0f"),
                "seconds": _last(run.metric("time/total_s"), ",.0f"),
                "state": run.unfinished or "ended",
            }
        )
    caption = (
        "Every run. Last K is the K of the last update. Success % is the last known success during training; mean@k % "
        "is measured after training."
    )
    links = [f"{episodes}#run-{i}" if episodes and run.episodes else "" for i, (*_, run) in enumerate(runs)]
    return table_of_rows(caption, rows, links)


def evaluation_table(evaluations: Sequence[KeptEvaluation], episodes: str, *, first: int) -> Table:
    rows = []
    for kept in evaluations:
        result, k = kept.result, str(kept.settings.get("horizon"))
        row = {"evaluation": str(kept.folder), "what": kept.title, "K": k, "state": "not ended"}
        if result is not None:
            for kind in ("mean", "best"):
                row[f"{kind}@k %"] = _share(result, kind)
            length = result.get("length_success_mean")
            row |= _of_kinds(result)
            row["steps"] = "" if length is None else f"{length:.1f}"
            row |= mean_reward(result) | {"truncated %": f"{100 * result['truncated']:.1f}"}
            row |= {"tasks x k": f"{result['tasks']} x {result['rollouts']}", "state": "ended"}
            if flags := result.get("not_official"):
                row["state"] += f"; not official: {', '.join(flags)}"
        rows.append(row)
    caption = "Every evaluation of this report, with 95 % intervals. Steps is the mean of the successes."
    return table_of_rows(caption, rows, [f"{episodes}#run-{first + i}" if episodes else "" for i in range(len(rows))])


def _last(values: pd.Series, form: str) -> str:
    return format(values.iloc[-1], form) if len(values) else ""


def _share(result: Mapping[str, Any], kind: str) -> str:
    """A share in percent, with its 95 % interval."""
    ends = " to ".join(f"{100 * end:.1f}" for end in result.get(f"{kind}_interval", ()))
    return f"{100 * result[f'{kind}_at_k']:.1f}" + f" ({ends})" * bool(ends)


def _of_kinds(result: Mapping[str, Any]) -> dict[str, str]:
    return {f"{p['name']} %": f"{100 * p['mean_at_k']:.1f}" for p in result.get("parts", ()) if p["kind"] == "kind"}
