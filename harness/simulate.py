"""`python -m harness.simulate`: shows what a horizon controller does with a distribution of lengths, without a model.

An episode needs a number of steps that is drawn. It succeeds if that number is at most its K; otherwise it is stopped at K. The
agent does not learn. The controller is the one that `harness.grpo` would use with the same flags.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from eh_gym import EpisodeOutcome
from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.controller import episode_horizon
from harness.planning.length_laws import GAP, PAPER, LengthLaw
from harness.run.episode_log import read_episodes
from harness.settings.command_line import errors_in_one_line, parse
from harness.settings.horizon import HorizonSettings, check_horizon_flags
from harness.settings.ranges import Range, check_settings
from harness.types.seeding import derive_seed

__all__ = ["Simulation", "main", "simulate"]


@dataclass(frozen=True)
class EpisodesFlags:
    """The episodes."""

    law: Literal["appworld", "bfcl", "gap"] = "appworld"
    """The steps that episodes need: the paper's quantiles (appworld, bfcl), or two parts with a gap between them."""
    log: Path | None = None
    """An episode log, such as RUN/episodes: the lengths of its successes take the place of the law."""
    episodes: Annotated[int, Range(1)] = 128
    """The number of episodes of an update."""
    group: Annotated[int, Range(1)] = 1
    """The number of episodes of one task. They need the same number of steps."""
    updates: Annotated[int, Range(1)] = 200
    """The number of updates of a run."""
    runs: Annotated[int, Range(1)] = 4
    """The number of runs."""
    seed: int = 0
    """The seed of every draw."""


@dataclass(frozen=True)
class Simulation(EpisodesFlags, HorizonSettings):
    """Plays a horizon controller against a distribution of episode lengths, and prints K, success and steps."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.episodes % self.group:
            raise ConfigError(f"episodes ({self.episodes}) must be a multiple of group, got {self.group}")
        if self.wrapper in ("none", "tokens", "task", "toggle"):
            raise ConfigError(
                f"a simulated episode has a K, no tokens, and a task that does not come again, got --wrapper {self.wrapper}; "
                "use elastic"
            )
        if self.budget_hint:
            raise ConfigError("--budget-hint is a text for an agent, and a simulation has none; leave it out")
        self.check_horizon()


def simulate(config: Simulation) -> np.ndarray:
    """Plays all runs.

    With ``horizon_key`` "kind", a task is of the kind "long" if it needs more than 14 steps.

    Returns:
        float64 [runs, updates, 3]: the mean K, the share of successes, and the mean number of steps of an update's episodes.
    """
    law = length_law(config)
    rows = np.zeros((config.runs, config.updates, 3))
    for run in range(config.runs):
        controller = config.controller()
        assert controller is not None  # `none` is refused
        rng = np.random.default_rng(derive_seed(config.seed, "simulate", run))
        for update in range(config.updates):
            needed = rng.choice(len(law.p), config.episodes // config.group, p=law.p) + 1
            for n in np.repeat(needed, config.group).tolist():
                info = {"kind": "long" if n > 14 else "short"}
                k = episode_horizon(controller, info, None)
                controller.record(EpisodeOutcome(min(n, k), k, n <= k, n > k, info=info))
                rows[run, update] += k, n <= k, min(n, k)
            controller.update()
    return rows / config.episodes


def length_law(config: Simulation) -> LengthLaw:
    """Returns the distribution that the flags name.

    No success of a log is longer than its K. Take the log of an evaluation with a large K.

    Raises:
        ConfigError: The log can't be read, or has no success.
    """
    if config.log is None:
        return {**PAPER, "gap": GAP}[config.law]
    files = sorted(config.log.glob("*.jsonl")) if config.log.is_dir() else [config.log]
    if not files:
        raise ConfigError(f"--log {config.log} is a folder without an episode log; give one such as RUN/episodes")
    try:
        lengths = [int(episode["length"]) for file in files for episode in read_episodes(file) if episode["success"]]
    except (OSError, StateError, KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"--log {config.log} must be an episode log such as RUN/episodes, got {error!r}") from error
    if not lengths or min(lengths) < 1:
        raise ConfigError(f"--log {config.log} has no success; use the log of an agent that succeeds")
    counts = np.bincount(lengths)[1:]
    return LengthLaw(str(config.log), counts / counts.sum())


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    with errors_in_one_line(console):
        config = parse(Simulation(), argv, prog="python -m harness.simulate")
        check_horizon_flags(sys.argv[1:] if argv is None else argv, config.wrapper, {"k_max"})
        law, rows = length_law(config), simulate(config)
    quantiles = f"P50 {law.quantile(0.5)}, P90 {law.quantile(0.9)}, max {law.quantile(1.0)}"
    console.print(f"steps needed by {law.name}: {quantiles}", highlight=False, markup=False)
    table = Table()
    for column in ("update", "K", "± runs", "success", "steps"):
        table.add_column(column, justify="right")
    parts = np.array_split(np.arange(config.updates), min(10, config.updates))
    for part in [*parts, np.arange(config.updates * 3 // 4, config.updates)]:
        runs = rows[:, part].mean(axis=1)
        k, success, steps = runs.mean(axis=0).tolist()
        cells = (f"{k:.1f}", f"{runs[:, 0].std():.2f}", f"{success:.3f}", f"{steps:.1f}")
        table.add_row(f"{part[0]} to {part[-1]}", *cells)
    console.print(table)


if __name__ == "__main__":
    main()
