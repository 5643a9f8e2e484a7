"""`python -m harness.simulate.beyond`: the options beyond the paper's controller against lengths that stay.

The real controllers, one episode after the other, each with the K that it would have. Left out: an agent that learns. The
simplest one was built and taken out again: trained models did not do what it did (docs/beyond-the-paper.md).
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
from rich.markup import escape
from rich.table import Table

from eh_gym import ElasticHorizon, EpisodeOutcome, FixedHorizon, HorizonController, KeyedHorizon, ProbedHorizon
from eh_gym.errors import ConfigError, EHError
from eh_gym.horizon.controller import episode_horizon
from harness.seeding import derive_seed
from harness.simulate.lengths import PAPER, LengthLaw, two_part

__all__ = ["CASES", "LAWS", "Case", "Comparison", "compare", "main", "play"]

K_MAX = 50


@dataclass(frozen=True)
class Case:
    """A controller to compare.

    Attributes:
        make: Makes a new one.
        prefill: Episodes of an evaluation at K = 50 that it hears before the first update.
    """

    make: Callable[[], HorizonController]
    prefill: int = 0


def _elastic(probe_fraction: float = 0.0, k0: int = 10, **settings: float | str) -> Callable[[], HorizonController]:
    def make() -> HorizonController:
        elastic = ElasticHorizon(k0, **settings)  # type: ignore[arg-type]
        return ProbedHorizon(elastic, K_MAX, probe_fraction) if probe_fraction else elastic

    return make


def _keyed(**settings: float) -> Callable[[], HorizonController]:
    return lambda: KeyedHorizon(lambda: ElasticHorizon(10, **settings), "kind")  # type: ignore[arg-type]


CASES: dict[str, Case] = {
    "fixed 50": Case(lambda: FixedHorizon(K_MAX)),
    "the paper's, K0 = 10": Case(_elastic()),
    "product-limit": Case(_elastic(estimator="product-limit")),
    "probes 1/8": Case(_elastic(1 / 8)),
    "probes 1/8, product-limit": Case(_elastic(1 / 8, estimator="product-limit")),
    "probes 1/8, product-limit, delta 0": Case(_elastic(1 / 8, estimator="product-limit", delta=0)),
    "the same, N = 800": Case(_elastic(1 / 8, estimator="product-limit", delta=0, buffer_size=800)),
    "truncated counted": Case(_elastic(count_truncated=True)),
    "truncated counted, P75": Case(_elastic(count_truncated=True, statistic="p75")),
    "by kind": Case(_keyed()),
    "by kind, cold growth 1": Case(_keyed(cold_growth=1)),
    "prefilled by 128 episodes": Case(_elastic(), prefill=128),
    "K0 = 5": Case(_elastic(k0=5)),
    "K0 = 5, cold growth 1": Case(_elastic(k0=5, cold_growth=1)),
    "K0 = 5, prefilled": Case(_elastic(k0=5), prefill=128),
}
"""The controllers compared."""

_NEVER = 200  # steps
_LOST = np.append(0.7 * PAPER["appworld"].p, np.zeros(_NEVER - K_MAX))
_LOST[-1] = 0.3
LAWS: dict[str, LengthLaw] = {
    "appworld": PAPER["appworld"],
    "gap": two_part("gap", (3, 9), (25, 45), 0.3),
    "lost": LengthLaw("AppWorld, and 30 % that never succeed", _LOST),
}
"""The paper's AppWorld lengths; lengths with a gap below which K can rest; AppWorld's, of an agent that gets lost."""


@dataclass(frozen=True)
class Comparison:
    """Compares controllers beyond the paper's against distributions of lengths: K, success, steps."""

    updates: int = 120
    """Updates of a run."""
    episodes: int = 128
    """Episodes of an update."""
    seeds: int = 4
    """Runs of each controller."""
    out: Path | None = None
    """Where to write the table as JSON."""

    def __post_init__(self) -> None:
        for name in ("updates", "episodes", "seeds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be >= 1, got {getattr(self, name)}")


def play(case: Case, law: LengthLaw, *, updates: int, episodes: int, seed: int) -> np.ndarray:
    """One run. An episode that needs more steps than its K is stopped there; its kind is whether it needs over 14 steps.

    Args:
        case: The controller.
        law: Of the needed steps.
        updates: T.
        episodes: Of an update.
        seed: Decides the lengths and the probes.

    Returns:
        float64 [T, 3]: of each update's episodes the mean K, the share of successes, and the mean steps.
    """
    controller, rng = case.make(), np.random.default_rng(derive_seed(seed, "beyond"))
    rows = np.zeros((updates, 3))
    for n in law.draw(rng, 1, case.prefill)[0].tolist() if case.prefill else []:
        controller.record(EpisodeOutcome(n, K_MAX, n <= K_MAX, n > K_MAX, info={"kind": n > 14}))
    for update in range(updates):
        for i, n in enumerate(law.draw(rng, 1, episodes)[0].tolist()):
            info = {"kind": n > 14}
            k = episode_horizon(controller, info, derive_seed(seed, update, i))
            controller.record(EpisodeOutcome(min(n, k), k, n <= k, n > k, info=info))
            rows[update] += k, n <= k, min(n, k)
        controller.update()
    return rows / episodes


def compare(config: Comparison) -> list[dict[str, float | str]]:
    """One row for each controller and law: means over the last quarter of the updates and the seeds; K's spread over these."""
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
    try:
        config = tyro.cli(Comparison, args=argv, prog="python -m harness.simulate.beyond")
        rows = compare(config)
    except EHError as error:
        console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        sys.exit(2)
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
