"""The tables of the report that no sweep prints: its runs and its evaluations."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.evaluation.folder import KeptEvaluation
from harness.records.metrics import graded
from harness.sweep.analysis import success_curve
from harness.sweep.runs import Arm, Suite, SweptRun
from harness.terminal.texts import Table, table_of


def run_table(runs: Sequence[tuple[Suite, Arm, SweptRun]], episodes: str) -> Table:
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
    return table_of(caption, rows, links)


def evaluation_table(evaluations: Sequence[KeptEvaluation], episodes: str, *, first: int) -> Table:
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
    return table_of(caption, rows, [f"{episodes}#run-{first + i}" if episodes else "" for i in range(len(rows))])


def _of_kinds(result: Mapping[str, Any]) -> dict[str, str]:
    return {f"{p['name']} %": f"{100 * p['mean_at_k']:.1f}" for p in result.get("parts", ()) if p["kind"] == "kind"}
