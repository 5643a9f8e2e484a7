"""The scores of a benchmark as a table: those that were measured, and published ones with what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.evaluation.published import published_scores

__all__ = ["Scores", "benchmark_markdown", "score_conditions", "score_rows"]

Scores = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The settings of an evaluation (those of `harness.evaluate`), and its result (the fields of `EvalResult`)."""


def score_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns a result's scores: what each is, in percent, and its 95 % interval in percent, or an empty text."""
    k = result["rollouts"]
    rows = [_row(f"mean@{k}", result["mean_at_k"], result["mean_interval"])]
    if k > 1:
        rows.append(_row(f"best@{k}", result["best_at_k"], result["best_interval"]))
        rows.append(_row(f"pass^{k} (all {k})", result["all_at_k"], result["all_interval"]))
    if result["category_mean"] is not None:
        rows.append(_row("mean of the categories", result["category_mean"]))
    if result["scenarios_at_k"] is not None:
        rows[0] = ("tasks (TGC)", *rows[0][1:])
        rows.append(_row("scenarios (SGC)", result["scenarios_at_k"]))
    for part in result["parts"]:
        rows.append(_row(f"{part['kind']} {part['name']}", part["mean_at_k"], part["mean_interval"]))
        if part["scenarios_at_k"] is not None:
            rows.append(_row(f"{part['kind']} {part['name']}, scenarios", part["scenarios_at_k"]))
    return rows


def score_conditions(settings: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Returns how an evaluation was played: temperature, tasks, episodes of each, K, and the environment's arguments."""
    temperature = settings["temperature"]
    sampled = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    return (
        f"{sampled}, {result['tasks']} tasks x {result['rollouts']}, K = {settings['horizon']}, {settings['env_args']}"
    )


def benchmark_markdown(name: str, scores: Sequence[Scores], cost: str) -> str:
    """Returns a Markdown page with the scores of one model, and the published scores of the same splits.

    Args:
        name: The model.
        scores: The evaluations, those of one split next to each other.
        cost: What they cost, as a sentence without its full stop.
    """
    lines = [f"# {name}", "", f"Cost: {cost}.", ""]
    for split in dict.fromkeys((settings["env"], settings["split"]) for settings, _ in scores):
        lines += [
            f"## {split[0]}, {split[1]}",
            "",
            "| who | score | % | 95 % | how |",
            "| --- | --- | --- | --- | --- |",
        ]
        for settings, result in scores:
            if (settings["env"], settings["split"]) == split:
                how = score_conditions(settings, result)
                lines += [f"| {name} | {what} | {share} | {low} | {how} |" for what, share, low in score_rows(result)]
        lines += [
            f"| *{score.who}* | {score.measure} | {score.percent} | | {score.remark} |"
            for score in published_scores(*split)
        ]
        lines.append("")
    return "\n".join(lines)


def _row(what: str, share: float, interval: Sequence[float] = ()) -> tuple[str, str, str]:
    return what, f"{100 * share:.1f}", " to ".join(f"{100 * end:.1f}" for end in interval)
