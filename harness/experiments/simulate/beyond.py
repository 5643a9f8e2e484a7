"""Plays controllers that the paper does not have against distributions of lengths.

Each episode has the K that the real controller would give it. The agent does not learn: a simple model of learning was tried, and
trained models did not behave like it (docs/beyond-the-paper.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from eh_gym import ElasticHorizon, EpisodeOutcome, FixedHorizon, HorizonController, KeyedHorizon
from eh_gym.horizon.controller import episode_horizon
from harness.experiments.simulate.lengths import PAPER, LengthLaw, two_part
from harness.types.seeding import derive_seed

__all__ = ["CASES", "LAWS", "Case", "play"]

K_MAX = 50


@dataclass(frozen=True)
class Case:
    """A controller to compare.

    Attributes:
        make: Makes a new controller.
        prefill: The number of episodes of an evaluation at K = 50 that it records before the first update.
    """

    make: Callable[[], HorizonController]
    prefill: int = 0


def _elastic(k0: int = 10, **settings: float) -> Callable[[], HorizonController]:
    return lambda: ElasticHorizon(k0, **settings)  # type: ignore[arg-type]


def _keyed(**settings: float) -> Callable[[], HorizonController]:
    return lambda: KeyedHorizon(lambda: ElasticHorizon(10, **settings), "kind")  # type: ignore[arg-type]


CASES: dict[str, Case] = {
    "fixed 50": Case(lambda: FixedHorizon(K_MAX)),
    "the paper's, K0 = 10": Case(_elastic()),
    "by kind": Case(_keyed()),
    "by kind, cold growth 1": Case(_keyed(cold_growth=1)),
    "prefilled by 128 episodes": Case(_elastic(), prefill=128),
    "K0 = 5": Case(_elastic(k0=5)),
    "K0 = 5, cold growth 1": Case(_elastic(k0=5, cold_growth=1)),
    "K0 = 5, prefilled": Case(_elastic(k0=5), prefill=128),
}
"""The controllers that are compared."""

_NEVER = 200  # steps
_LOST = np.append(0.7 * PAPER["appworld"].p, np.zeros(_NEVER - K_MAX))
_LOST[-1] = 0.3
LAWS: dict[str, LengthLaw] = {
    "appworld": PAPER["appworld"],
    "gap": two_part("gap", (3, 9), (25, 45), 0.3),
    "lost": LengthLaw("AppWorld, and 30 % that never succeed", _LOST),
}
"""The paper's AppWorld lengths; lengths with a gap, below which K can stay; the lengths of an agent that often gets lost."""


def play(case: Case, law: LengthLaw, *, updates: int, episodes: int, seed: int) -> np.ndarray:
    """Plays one run. An episode that needs more steps than its K is stopped at K.

    A task has one of two kinds: it needs more than 14 steps, or not.

    Args:
        case: The controller.
        law: The distribution of the needed steps.
        updates: The number of updates, T.
        episodes: The number of episodes of an update.
        seed: Draws the lengths.

    Returns:
        float64 [T, 3]: the mean K, the share of successes, and the mean number of steps of each update's episodes.
    """
    controller, rng = case.make(), np.random.default_rng(derive_seed(seed, "beyond"))
    rows = np.zeros((updates, 3))
    for n in law.draw(rng, 1, case.prefill)[0].tolist() if case.prefill else []:
        controller.record(EpisodeOutcome(min(n, K_MAX), K_MAX, n <= K_MAX, n > K_MAX, info={"kind": n > 14}))
    for update in range(updates):
        for i, n in enumerate(law.draw(rng, 1, episodes)[0].tolist()):
            info = {"kind": n > 14}
            k = episode_horizon(controller, info, derive_seed(seed, update, i))
            controller.record(EpisodeOutcome(min(n, k), k, n <= k, n > k, info=info))
            rows[update] += k, n <= k, min(n, k)
        controller.update()
    return rows / episodes
