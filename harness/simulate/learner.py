"""`python -m harness.simulate.learner`: controllers against the simplest agent that learns, on EH-CabinetLocked's lengths.

A distribution of lengths alone can't show what a plateau costs: on the real one the long tasks are never learned because
their first successes are longer than K. This agent learns from what it is let finish. Left out: everything else of a policy;
the three numbers of `Learner` are set so that a fixed K = 50 and the paper's controller do what trained models did.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from eh_gym.errors import ConfigError, EHError
from eh_gym.horizon import (
    ElasticHorizon,
    EpisodeOutcome,
    FixedHorizon,
    HorizonController,
    KeyedHorizon,
    LinearHorizon,
    ProbedHorizon,
)
from eh_gym.horizon.controller import episode_horizon
from envs.cabinet.tasks import success_ceiling
from harness.seeding import derive_seed

__all__ = ["CASES", "Agent", "Learner", "Life", "live", "main"]

LONG = 14  # the shortest solution of a cabinet with a lock
NEVER = 10**6  # steps
K_MAX = 50


@dataclass(frozen=True)
class Learner:
    """Plays EH-CabinetLocked's tasks with ever simpler agents and compares controllers by what they cost and teach."""

    extra: float = 60.0
    """Steps beyond the shortest solution that a long task takes the untrained agent: the median of a log-normal."""
    half_life: float = 30.0
    """Lessons on long tasks that halve `extra`. A group with success rate r is a lesson of 2 sqrt(r (1 - r))."""
    lost: float = 0.5
    """The untrained agent's share of episodes that never end; it falls to 0.05, halved every 40 lessons on any task."""
    updates: int = 60
    """Updates."""
    tasks: int = 8
    """Tasks in an update."""
    group: int = 8
    """Episodes of a task."""
    seeds: int = 20
    """Runs of each controller."""
    out: Path | None = None
    """Where to write the table as JSON."""

    def __post_init__(self) -> None:
        for name in ("updates", "tasks", "group", "seeds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.extra <= 0 or self.half_life <= 0 or not 0.05 <= self.lost < 1:
            raise ConfigError("need extra > 0, half_life > 0 and lost in [0.05, 1)")


@dataclass
class Agent:
    """The agent's state: the lessons that it has had."""

    settings: Learner
    rng: np.random.Generator
    lessons: float = 0.0
    long_lessons: float = 0.0

    def needed(self, tasks: int) -> tuple[np.ndarray, np.ndarray]:
        """The steps that the next episodes need, int64 [tasks x group], and which tasks are long, bool [the same]."""
        s, rng = self.settings, self.rng
        ceiling = [success_ceiling(k, locked=True) for k in range(41)]
        shortest = np.repeat(1 + rng.choice(40, size=tasks, p=np.diff(ceiling)), s.group)
        long = shortest >= LONG
        median = s.extra * 2.0 ** (-self.long_lessons / s.half_life)
        spread = median * np.exp(0.5 * rng.standard_normal(len(long)))
        extra = np.where(long, spread, rng.exponential(size=len(long)))  # on the short ones it wastes a step
        lost = 0.05 + (s.lost - 0.05) * 2.0 ** (-self.lessons / 40)
        needed = shortest + np.rint(extra).astype(np.int64)
        return np.where(rng.random(len(long)) < lost, NEVER, needed), long

    def learn(self, success: np.ndarray, long: np.ndarray) -> None:
        """One lesson a group: the mean size of its advantages when they are divided by their standard deviation."""
        rate = success.reshape(-1, self.settings.group).mean(axis=1)
        lessons = 2 * np.sqrt(rate * (1 - rate))
        self.lessons += float(lessons.sum())
        self.long_lessons += float(lessons[long[:: self.settings.group]].sum())


@dataclass(frozen=True)
class Life:
    """What came of one run.

    Attributes:
        steps: Taken in all.
        long: Share of long tasks that the trained agent solves within 50 steps.
        k: The mean K of the last quarter.
    """

    steps: int
    long: float
    k: float


def live(controller: HorizonController, settings: Learner, seed: int, *, prefill: int = 0) -> Life:
    """One run: play, tell the controller, learn; then a test on many long tasks at K = 50.

    Args:
        controller: A new one.
        settings: The agent.
        seed: Decides the tasks, the steps needed, and the probes.
        prefill: Tasks of an evaluation at K = 50 before the first update, which the controller hears. Its steps count.
    """
    agent = Agent(settings, np.random.default_rng(derive_seed(seed, "learner")))
    steps, ks = 0, []

    def play(tasks: int, update: int) -> None:
        nonlocal steps
        needed, long = agent.needed(tasks)
        infos = [{"kind": "long" if is_long else "short"} for is_long in long]
        if update < 0:
            horizons = np.full(len(needed), K_MAX)
        else:
            seeds = (derive_seed(seed, "episode", update, i) for i in range(len(needed)))
            horizons = np.array([episode_horizon(controller, i, s) for i, s in zip(infos, seeds, strict=True)])
        success = needed <= horizons
        lengths = np.minimum(needed, horizons)
        steps += int(lengths.sum())
        for length, k, won, info in zip(lengths.tolist(), horizons.tolist(), success.tolist(), infos, strict=True):
            controller.record(EpisodeOutcome(length, k, won, not won, info=info))
        if update >= 0:
            agent.learn(success, long)

    if prefill:
        play(prefill, -1)
    for update in range(settings.updates):
        play(settings.tasks, update)
        controller.update()
        ks.append(controller.horizon)
    needed, long = agent.needed(2000)
    return Life(steps, float((needed[long] <= K_MAX).mean()), float(np.mean(ks[-max(1, len(ks) // 4) :])))


def _probed(fraction: float, **settings: float | str) -> Callable[[], HorizonController]:
    def make() -> HorizonController:
        return ProbedHorizon(ElasticHorizon(10, **settings), K_MAX, fraction)  # type: ignore[arg-type]

    return make


def _keyed(cold_growth: float) -> Callable[[], HorizonController]:
    return lambda: KeyedHorizon(lambda: ElasticHorizon(10, cold_growth=cold_growth), key="kind")


CASES: dict[str, Callable[[], HorizonController]] = {
    "fixed 50": lambda: FixedHorizon(50),
    "fixed 30": lambda: FixedHorizon(30),
    "linear 10 to 50": lambda: LinearHorizon(10, 50, 40 / 60),
    "paper, K0 = 50": lambda: ElasticHorizon(50),
    "paper, K0 = 10": lambda: ElasticHorizon(10),
    "+ prefilled by an evaluation": lambda: ElasticHorizon(10),
    "+ product-limit": lambda: ElasticHorizon(10, estimator="product-limit"),
    "+ cold growth 4": lambda: ElasticHorizon(10, cold_growth=4),
    "+ probes 1/8, observed": _probed(1 / 8),
    "+ probes 1/8, product-limit": _probed(1 / 8, estimator="product-limit"),
    "+ probes 1/4, product-limit": _probed(1 / 4, estimator="product-limit"),
    "+ probes 3/8, product-limit": _probed(3 / 8, estimator="product-limit"),
    "probes 1/4, product-limit P50 + 3": _probed(1 / 4, estimator="product-limit", statistic="p50", delta=3),
    "probes 3/8, product-limit P50 + 3": _probed(3 / 8, estimator="product-limit", statistic="p50", delta=3),
    "probes 1/2, product-limit P50 + 3": _probed(1 / 2, estimator="product-limit", statistic="p50", delta=3),
    "paper by kind (short, long)": _keyed(0),
    "paper by kind, cold growth 4": _keyed(4),
}
"""The controllers compared; the first is what the others are measured against."""


def compare(settings: Learner) -> list[dict[str, float | str]]:
    """One row a controller: means and standard deviations over the seeds, steps relative to the first case's."""
    rows: list[dict[str, float | str]] = []
    base: list[Life] = []
    for name, make in CASES.items():
        prefill = 16 if "prefilled" in name else 0
        lives = [live(make(), settings, seed, prefill=prefill) for seed in range(settings.seeds)]
        base = base or lives
        cost = np.array([life.steps / other.steps for life, other in zip(lives, base, strict=True)])
        long = np.array([life.long for life in lives])
        goal = (cost <= 0.7) & (long >= [0.95 * other.long for other in base])
        rows.append(
            {
                "controller": name,
                "steps": float(cost.mean()),
                "steps_std": float(cost.std()),
                "long": float(long.mean()),
                "long_std": float(long.std()),
                "k": float(np.mean([life.k for life in lives])),
                "goal": float(goal.mean()),
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    try:
        settings = tyro.cli(Learner, args=argv, prog="python -m harness.simulate.learner")
        rows = compare(settings)
    except EHError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        sys.exit(2)
    table = Table(title=f"{settings.seeds} seeds; steps relative to {next(iter(CASES))}", title_justify="left")
    for column in ("controller", "steps", "long tasks solved", "K at the end", "95 % of it at 70 %"):
        table.add_column(column, justify="left" if column == "controller" else "right")
    for row in rows:
        table.add_row(
            str(row["controller"]),
            f"{row['steps']:.2f} ± {row['steps_std']:.2f}",
            f"{row['long']:.2f} ± {row['long_std']:.2f}",
            f"{row['k']:.1f}",
            f"{row['goal']:.0%}",
        )
    console.print(table)
    if settings.out is not None:
        settings.out.write_text(json.dumps({"settings": asdict(settings), "rows": rows}, default=str, indent=1))


if __name__ == "__main__":
    main()
