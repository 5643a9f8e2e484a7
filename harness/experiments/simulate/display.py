"""Prints the tables of a simulation."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["show"]

_WORDS: dict[str, str] = {"floor": "real K", "nearest": "nearest", "floor-state": "Algorithm 2"}


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the tables; `result` is the content of `simulation.json`."""
    settings = result["settings"]
    law = result["law"]
    console.print(
        f"{law['name']}: min {law['min']}, mean {law['mean']:.2f}, P50 {law['p50']}, P90 {law['p90']}, max {law['max']}; "
        f"{settings['runs']} runs of {settings['updates']} updates of {settings['episodes']} episodes",
        highlight=False,
    )
    points = ", ".join(f"{k:g}" for k in result["fixed_points"])
    console.print(f"fixed points of a real K, with infinitely many episodes per update: {points}", highlight=False)

    table = Table(title="where K ends (mean of the last quarter)", title_justify="left")
    for column in ("controller", "K0", "K", "± runs", "wobble", "settles", "success", "steps"):
        table.add_column(column, justify="left" if column == "controller" else "right")
    for row in result["settling"]:
        table.add_row(
            _WORDS[row["rounding"]] if row["truncation"] else "sees longer ones",
            f"{row['k0']}",
            f"{row['end']:.1f}",
            f"{row['end_std']:.2f}",
            f"{row['wobble']:.2f}",
            f"{row['settling']:.0f}",
            f"{row['success']:.3f}",
            f"{row['steps']:.1f}",
        )
    console.print(table)

    low, high = min(settings["k0"]), max(settings["k0"])
    table = Table(title=f"the dead band: where K ends from {low} / from {high}", title_justify="left")
    for column in ("alpha", "K is", *(f"delta {delta:g}" for delta in settings["deltas"])):
        table.add_column(column)
    for alpha in settings["alphas"]:
        cells = [row for row in result["dead_band"] if row["alpha"] == alpha]
        for name, kind in (("Alg. 2", "floor_state"), ("real", "real")):
            ends = (f"{c[f'{kind}_from_low']:.1f}/{c[f'{kind}_from_high']:.1f}" for c in cells)
            table.add_row(f"{alpha:g}", name, *ends)
    console.print(table)

    table = Table(title="the episodes of a group need the same number of steps", title_justify="left")
    for column in ("group", "K", "± runs", "wobble of P90", "wobble of K"):
        table.add_column(column, justify="right")
    for row in result["groups"]:
        spread = "-" if row["boundary_std"] is None else f"{row['boundary_std']:.2f}"
        table.add_row(str(row["group"]), f"{row['end']:.1f}", f"{row['end_std']:.2f}", spread, f"{row['wobble']:.2f}")
    console.print(table)
