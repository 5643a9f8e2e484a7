"""The scores of an evaluation by the benchmarks' own measures, and how it was played."""

from collections.abc import Mapping, Sequence
from typing import Any


def score_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns a result's scores: what each is, in percent, and its 95 % interval in percent, or an empty text."""
    k = result["rollouts"]
    rows = [_row(f"mean@{k}", result["mean_at_k"], result["mean_interval"])]
    if k > 1:
        rows.append(_row(f"pass@{k} (any of {k})", result["best_at_k"], result["best_interval"]))
        rows.append(_row(f"pass^{k} (all {k})", result["all_at_k"], result["all_interval"]))
    if result.get("category_mean") is not None:
        rows.append(_row("mean of the categories", result["category_mean"]))
    if result.get("scenarios_at_k") is not None:
        rows[0] = ("tasks (TGC)", *rows[0][1:])
        rows.append(_row("scenarios (SGC)", result["scenarios_at_k"]))
    for part in result["parts"]:
        rows.append(_row(f"{part['kind']} {part['name']}", part["mean_at_k"], part["mean_interval"]))
        if part.get("scenarios_at_k") is not None:
            rows.append(_row(f"{part['kind']} {part['name']}, scenarios", part["scenarios_at_k"]))
    return rows


def _row(what: str, share: float, interval: Sequence[float] = ()) -> tuple[str, str, str]:
    return what, f"{100 * share:.1f}", " to ".join(f"{100 * end:.1f}" for end in interval)
