"""`python -m harness.simulate`: plays the horizon controller against a distribution of lengths, without a model.

It plays thousands of runs in seconds. Its tables show where K settles and how fast, how Algorithm 2's floored state stalls,
and what effect grouped tasks and the truncation of long successes have. `harness.simulate_beyond` compares the controllers that
the paper does not have.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from rich.console import Console

from eh_gym.errors import ConfigError
from eh_gym.horizon.elastic import Rounding, Statistic
from harness.experiments.simulate.controller import Runs, elastic_runs, fixed_points, settling_updates, tail, targets
from harness.experiments.simulate.display import show
from harness.experiments.simulate.lengths import PAPER, LengthLaw, from_episodes, log_normal, two_part
from harness.run.files import make_folder
from harness.settings.command_line import errors_in_one_line, parse
from harness.types.seeding import derive_seed

__all__ = ["Simulation", "main", "simulate"]


@dataclass(frozen=True)
class LawFlags:
    """The distribution of the number of steps that an episode needs."""

    law: Literal["appworld", "bfcl", "log-normal", "two-part", "episodes"] = "appworld"
    """The distribution: the paper's quantiles (appworld, bfcl), a log-normal, two parts with a gap, or a run's episode log."""
    log: Path | None = None
    """With --law episodes: a .jsonl file, or a folder of them, such as RUN/episodes."""
    least: int = 1
    """With --law log-normal: the shortest length."""
    median: float = 12.0
    """With --law log-normal: the median."""
    p90: float = 30.0
    """With --law log-normal: the 90th percentile."""
    longest: int = 50
    """With --law log-normal: the longest length."""
    short: tuple[int, int] = (3, 9)
    """With --law two-part: the first and the last length of the short part."""
    long: tuple[int, int] = (25, 45)
    """With --law two-part: the first and the last length of the long part."""
    share_long: float = 0.3
    """With --law two-part: the share of the long part."""


@dataclass(frozen=True)
class ControllerFlags:
    """The settings of the elastic horizon."""

    k0: tuple[int, ...] = (10, 15, 50)
    """The values of K to start from."""
    k_min: int = 5
    """The lower bound of the target."""
    k_max: int = 50
    """The upper bound of the target."""
    alpha: float = 0.1
    """The weight of the new target in the moving average of K."""
    delta: float = 10.0
    """The headroom, in steps."""
    buffer_size: int = 100
    """The number of most recent successes that are remembered (N)."""
    min_successes: int = 20
    """K does not move before this many successes were seen."""
    statistic: Statistic = "p90"
    """The statistic of the successes' lengths that is the boundary."""


@dataclass(frozen=True)
class RunsFlags:
    """The simulated runs."""

    runs: int = 200
    """The number of runs of each setting."""
    updates: int = 200
    """The number of updates of a run."""
    episodes: int = 128
    """The number of episodes of an update."""
    group: int = 1
    """The number of episodes of one task. They need the same number of steps."""
    seed: int = 0
    """The seed of every draw."""


@dataclass(frozen=True)
class TablesFlags:
    """What the tables vary, and where they are written."""

    alphas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    """The values of alpha in the table of the dead band."""
    deltas: tuple[float, ...] = (0.0, 5.0, 10.0, 15.0, 20.0)
    """The values of delta in the table of the dead band."""
    groups: tuple[int, ...] = (1, 2, 4, 8, 16)
    """The group sizes in the table of grouped tasks."""
    out: Path | None = None
    """A folder for simulation.json and simulation.png."""


@dataclass(frozen=True)
class Simulation(TablesFlags, RunsFlags, ControllerFlags, LawFlags):
    """Plays the elastic horizon against a distribution of lengths: fixed points, settling, dead band, noise of groups."""

    def __post_init__(self) -> None:
        for name in ("runs", "updates", "episodes", "group", "min_successes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be >= 1, got {getattr(self, name)}")
        for name in ("k0", "alphas", "deltas", "groups"):
            if not getattr(self, name):
                raise ConfigError(f"{name} must name at least one value")
        for k0 in self.k0:
            if not 1 <= self.k_min <= k0 <= self.k_max:
                raise ConfigError(f"k0 must be in k_min..k_max ({self.k_min}..{self.k_max}), got {k0}")
        for alpha in (self.alpha, *self.alphas):
            if not 0 < alpha <= 1:
                raise ConfigError(f"alpha must be in (0, 1], got {alpha}")
        for delta in (self.delta, *self.deltas):
            if not (math.isfinite(delta) and delta >= 0):
                raise ConfigError(f"delta must be >= 0 steps, got {delta}")
        if self.buffer_size < self.min_successes:
            raise ConfigError(f"min_successes must be <= buffer_size ({self.buffer_size}), got {self.min_successes}")
        for group in (self.group, *self.groups):
            if group < 1 or self.episodes % group:
                raise ConfigError(f"episodes ({self.episodes}) must be a multiple of every group, got {group}")
        if (self.law == "episodes") != (self.log is not None):
            raise ConfigError("law episodes and --log go together: --law episodes --log RUN/episodes")

    def lengths(self) -> LengthLaw:
        """The distribution that `law` names."""
        if self.log is not None:
            return from_episodes(self.log)
        if self.law == "log-normal":
            return log_normal("log-normal", self.least, self.median, self.p90, self.longest)
        if self.law == "two-part":
            return two_part("two-part", self.short, self.long, self.share_long)
        return PAPER[self.law]


def simulate(config: Simulation) -> dict[str, Any]:
    """Returns all tables as JSON values. `docs/simulate.md` explains the columns."""
    law = config.lengths()
    aims = targets(law, config.delta, config.k_min, config.k_max, config.statistic)
    return {
        "settings": {name: str(v) if isinstance(v, Path) else v for name, v in vars(config).items()},
        "law": {
            "name": law.name,
            "min": law.quantile(0.0),
            "mean": law.mean(),
            "p50": law.quantile(0.5),
            "p90": law.quantile(0.9),
            "max": law.quantile(1.0),
            "p": law.p.tolist(),
        },
        "map": {"k": list(aims), "target": list(aims.values())},
        "fixed_points": fixed_points(aims),
        "settling": _settling(config, law),
        "dead_band": _dead_band(config, law),
        "groups": _groups(config, law),
    }


def _play(config: Simulation, law: LengthLaw, place: str, rows: int, *, group: int = 0, **settings: Any) -> Runs:
    """Plays `rows` runs with the command's settings; `settings` replace some of them."""
    rng = np.random.default_rng(derive_seed(config.seed, "simulate", place))

    def needed() -> Iterator[np.ndarray]:
        for _ in range(config.updates):
            yield law.draw(rng, rows, config.episodes, group or config.group)

    names = ("k_min", "k_max", "alpha", "delta", "buffer_size", "min_successes", "statistic")
    given = {name: getattr(config, name) for name in names}
    given["buffer_size"] = min(config.buffer_size, max(config.min_successes, config.updates * config.episodes))
    return elastic_runs(needed(), **{**given, **settings})


def _settling(config: Simulation, law: LengthLaw) -> list[dict[str, Any]]:
    """Returns a row for each rounding and start, and rows for a controller that sees successes longer than their K, too."""
    rows: list[dict[str, Any]] = []
    k0 = np.repeat(config.k0, config.runs)
    for rounding, see_all in [*((r, False) for r in get_args(Rounding)), ("floor", True)]:
        runs = _play(config, law, "settling", len(k0), k0=k0, rounding=rounding, see_all=see_all)
        for i, start in enumerate(config.k0):
            mine = slice(i * config.runs, (i + 1) * config.runs)
            end = tail(runs.k[mine])
            rows.append(
                {
                    "rounding": rounding,
                    "truncation": not see_all,
                    "k0": start,
                    "end": float(end.mean()),
                    "end_std": float(end.mean(axis=1).std()),
                    "wobble": float(end.std(axis=1).mean()),
                    "settling": float(np.median(settling_updates(runs.k[mine]))),
                    "success": float(tail(runs.success[mine]).mean()),
                    "steps": float(tail(runs.steps[mine]).mean()) / config.episodes,
                    "k_by_update": [
                        [round(float(x), 3) for x in np.percentile(runs.k[mine], level, axis=0)]
                        for level in (10, 50, 90)
                    ],
                }
            )
    return rows


def _dead_band(config: Simulation, law: LengthLaw) -> list[dict[str, Any]]:
    """Returns a row for each alpha and delta: the final K of Algorithm 2 and of a real K, from the lowest and highest start."""
    runs = max(1, config.runs // 5)
    starts = (min(config.k0), max(config.k0))
    grid = [(alpha, delta, k0) for alpha in config.alphas for delta in config.deltas for k0 in starts]
    alpha, delta, k0 = (np.repeat(column, runs) for column in zip(*grid, strict=True))
    ends: dict[Rounding, np.ndarray] = {}
    for rounding in ("floor-state", "floor"):
        played = _play(config, law, "dead band", len(k0), alpha=alpha, delta=delta, k0=k0, rounding=rounding)
        ends[rounding] = (
            tail(played.k).mean(axis=1).reshape(len(config.alphas), len(config.deltas), 2, runs).mean(axis=3)
        )
    return [
        {
            "alpha": a,
            "delta": d,
            "floor_state_from_low": float(ends["floor-state"][i, j, 0]),
            "floor_state_from_high": float(ends["floor-state"][i, j, 1]),
            "real_from_low": float(ends["floor"][i, j, 0]),
            "real_from_high": float(ends["floor"][i, j, 1]),
        }
        for i, a in enumerate(config.alphas)
        for j, d in enumerate(config.deltas)
    ]


def _groups(config: Simulation, law: LengthLaw) -> list[dict[str, Any]]:
    """Returns a row for each group size: how much P90 and K vary if the episodes of a group need the same number of steps."""
    rows = []
    for group in config.groups:
        runs = _play(config, law, "groups", config.runs, group=group, k0=config.k0[0])
        k, boundary = tail(runs.k), tail(runs.boundary)
        rows.append(
            {
                "group": group,
                "end": float(k.mean()),
                "end_std": float(k.mean(axis=1).std()),
                "boundary_std": float(np.nanstd(boundary, axis=1).mean()) if np.isfinite(boundary).any() else None,
                "wobble": float(k.std(axis=1).mean()),
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    with errors_in_one_line(console):
        config = parse(Simulation(), argv, prog="python -m harness.simulate")
        if config.out is not None:
            make_folder(config.out, "--out")
        started = time.perf_counter()
        result = simulate(config)
        show(result, console)
        console.print(f"{time.perf_counter() - started:.1f} s", highlight=False)
        if config.out is not None:
            from harness.experiments.simulate.figure import draw_simulation

            (config.out / "simulation.json").write_text(json.dumps(result, indent=1))
            draw_simulation(result, config.out / "simulation.png")
            console.print(f"written: {config.out}", highlight=False)


if __name__ == "__main__":
    main()
