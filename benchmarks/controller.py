"""What the horizon costs: a controller's update, a wrapped step, a shared read and a shared record.

    python benchmarks/controller.py [--repeats 15]

Two things at a time are timed in turn in this process, in CPU seconds. The environments do almost nothing. With real
environments every ratio is smaller.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from flags import new_parser, parse, print_heading, run
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, FixedHorizon, HorizonController, LinearHorizon, SharedHorizon
from eh_gym.wrappers import ElasticTimeLimit

K = 50
LONG = 5000  # steps of an episode of which resets and ends are a negligible part
PAPER_STEP_S = 320 / 8 / 200 * 3600  # "320 device-hours", 8 devices, 200 training steps
Timed = Callable[[], int]
"""Does something several times, and returns how often."""
OUTCOME = EpisodeOutcome(length=12, horizon=K, success=True, task_id="cabinet-train-000017")


class Nothing(gym.Env[Any, Any]):
    """An environment that does nothing, so that only the wrapper is timed."""

    def __init__(self, reward: float) -> None:
        self.reward = reward

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Does nothing."""
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Returns the reward that was given to the constructor."""
        return 0, self.reward, False, False, {}


def play(env: gym.Env[Any, Any], episodes: int, k: int = K) -> Timed:
    """Plays episodes which K stops, and counts their steps. Resets and ends are timed too."""

    def run() -> int:
        step = env.step
        for _ in range(episodes):
            env.reset()
            for _ in range(k):
                step(0)
        return episodes * k

    return run


def repeat(call: Callable[[], object], times: int) -> Timed:
    """Makes `times` calls."""

    def run() -> int:
        for _ in range(times):
            call()
        return times

    return run


def compare(ours: Timed, base: Timed, repeats: int) -> tuple[list[float], list[float]]:
    """Runs both in turn and returns the CPU seconds per call of each. The first round does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(repeats + 1):
        for which, timed in enumerate((ours, base)):
            start = time.process_time()
            calls = timed()
            if i:
                times[which].append((time.process_time() - start) / calls)
    return times


def full(controller: ElasticHorizon) -> ElasticHorizon:
    """Fills the controller's buffer and returns the controller."""
    for length in np.random.default_rng(0).integers(1, K, size=controller.buffer_size):
        controller.record(EpisodeOutcome(length=int(length), horizon=K, success=True))
    return controller


def main() -> None:
    """Times everything and prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="the number of interleaved repeats of each comparison")
    repeats = parse(parser, repeats=1).repeats

    elastic = full(ElasticHorizon())
    linear = LinearHorizon(10, K, 0.2)
    lengths = np.random.default_rng(0).integers(1, K, size=100)
    shared = SharedHorizon(full(ElasticHorizon(k0=K)))
    plain = full(ElasticHorizon(k0=K))

    def limited(controller: HorizonController, env: gym.Env[Any, Any], episodes: int = 200, k: int = K) -> Timed:
        return play(ElasticTimeLimit(env, controller, success=lambda *_: False), episodes, k)

    def base(env: gym.Env[Any, Any], episodes: int = 200, k: int = K) -> Timed:
        return play(TimeLimit(env, k), episodes, k)

    zero, one = Nothing(0.0), Nothing(1.0)
    # An episode lasts until its limit: the car rolls back and never reaches the goal.
    car, again = (gym.make("MountainCar-v0", max_episode_steps=-1, disable_env_checker=True) for _ in range(2))

    def busy() -> None:  # one training step of the paper: 16 tasks x 8 rollouts, then the update
        for _ in range(128):
            elastic.record(OUTCOME)
        elastic.update()

    rows = [
        ("ElasticHorizon.update", "np.percentile of its buffer", repeat(elastic.update, 300),
         repeat(lambda: np.percentile(lengths, 90), 300)),
        ("ElasticHorizon.update", "LinearHorizon.update", repeat(elastic.update, 300), repeat(linear.update, 300)),
        ("128 records and an update", "ElasticHorizon.update", repeat(busy, 50), repeat(elastic.update, 300)),
        ("step alone, reward 0", "TimeLimit", limited(FixedHorizon(LONG), zero, 2, LONG), base(zero, 2, LONG)),
        ("step, fixed K, reward 0", "TimeLimit", limited(FixedHorizon(K), zero), base(zero)),
        ("step, elastic K, reward 0", "TimeLimit", limited(ElasticHorizon(k0=K), zero), base(zero)),
        ("step, shared K, reward 0", "TimeLimit", limited(shared, zero), base(zero)),
        ("step, elastic K, reward 1", "TimeLimit", limited(ElasticHorizon(k0=K), one), base(one)),
        ("step, elastic K, reward 1", "TimeLimit and episode stats", limited(ElasticHorizon(k0=K), one),
         play(RecordEpisodeStatistics(TimeLimit(one, K)), 200)),
        ("step, elastic K, MountainCar", "TimeLimit", limited(ElasticHorizon(k0=K), car, 20), base(again, 20)),
        ("SharedHorizon.horizon", "ElasticHorizon.horizon", repeat(lambda: shared.horizon, 20_000),
         repeat(lambda: plain.horizon, 20_000)),
        ("SharedHorizon.record", "ElasticHorizon.record", repeat(lambda: shared.record(OUTCOME), 2_000),
         repeat(lambda: plain.record(OUTCOME), 2_000)),
    ]  # fmt: skip

    print_heading("gymnasium", "numpy")
    print(f"repeats     {repeats}, interleaved; K = {K}; medians, ratios with their range\n")
    print(f"{'this':<32}{'that':<28}{'this us':>9}{'that us':>9}{'ratio':>8}   range")
    for name, against, ours, base in rows:
        a, b = compare(ours, base, repeats)
        ratios = sorted(x / y for x, y in zip(a, b, strict=True))
        print(
            f"{name:<32}{against:<28}{statistics.median(a) * 1e6:>9.2f}{statistics.median(b) * 1e6:>9.2f}"
            f"{statistics.median(ratios):>8.2f}   {ratios[0]:.2f}..{ratios[-1]:.2f}"
        )
    a, _ = compare(repeat(busy, 50), repeat(elastic.update, 50), repeats)
    share = statistics.median(a) / PAPER_STEP_S
    print(f"\n128 records and an update: {share:.0e} of the paper's training step (7B: {PAPER_STEP_S:.0f} s)", end="")
    print("; it claims < 1e-3")
    shared.close()


if __name__ == "__main__":
    run(main)
