"""`python -m harness.simulate_beyond`: compares this project's own controllers with the paper's, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from eh_gym.errors import ConfigError
from harness.experiments.simulate.beyond import CASES, LAWS, play
from harness.run.files import make_folder
from harness.settings.command_line import errors_in_one_line, parse

__all__ = ["Comparison", "compare", "main"]


@dataclass(frozen=True)
class Comparison:
    """Plays the paper's controllers and others against distributions of lengths, and compares K, success and steps."""

    updates: int = 120
    """The number of updates of a run."""
    episodes: int = 128
    """The number of episodes of an update."""
    seeds: int = 4
    """The number of runs of each controller."""
    out: Path | None = None
    """A file to which the table is written as JSON."""

    def __post_init__(self) -> None:
        for name in ("updates", "episodes", "seeds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be >= 1, got {getattr(self, name)}")


def compare(config: Comparison) -> list[dict[str, float | str]]:
    """Returns a row for each law and controller: means over the seeds and the last quarter of the updates, and K's spread."""
    rows: list[dict[str, float | str]] = []
    last = max(1, config.updates // 4)
    for law_name, law in LAWS.items():
        for name, case in CASES.items():
            runs = [
                play(case, law, updates=config.updates, episodes=config.episodes, seed=seed)[-last:].mean(axis=0)
                for seed in range(config.seeds)
            ]
            k, success, steps = np.mean(runs, axis=0).tolist()
            spread = float(np.std([run[0] for run in runs]))
            rows.append(
                {"law": law_name, "controller": name, "k": k, "k_std": spread, "success": success, "steps": steps}
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    with errors_in_one_line(console):
        config = parse(Comparison(), argv, prog="python -m harness.simulate_beyond")
        if config.out is not None:
            if config.out.is_dir():
                raise ConfigError(f"out must be a file, got the folder {config.out}; add a name such as beyond.json")
            make_folder(config.out.parent, "--out")
        rows = compare(config)
    for law in LAWS:
        table = Table(title=f"{LAWS[law].name}: the last quarter of {config.updates} updates", title_justify="left")
        for column in ("controller", "mean K", "± runs", "success", "steps"):
            table.add_column(column, justify="left" if column == "controller" else "right")
        for row in (row for row in rows if row["law"] == law):
            figures = f"{row['k']:.1f}", f"{row['k_std']:.1f}", f"{row['success']:.3f}", f"{row['steps']:.1f}"
            table.add_row(str(row["controller"]), *figures)
        console.print(table)
    if config.out is not None:
        config.out.write_text(json.dumps({"settings": asdict(config), "rows": rows}, default=str, indent=1))


if __name__ == "__main__":
    main()
