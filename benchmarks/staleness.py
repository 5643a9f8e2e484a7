"""Learning per second of a clock, by how far ahead of the trainer episodes may begin (`--max-staleness`).

    OMP_NUM_THREADS=1 python benchmarks/staleness.py

The quick start trains on EH-Cabinet, whose steps take some time: an exponential draw with the mean in the first column. Each arm
has the same tasks, seeds and clone of the expert. 0 samples and trains in turns; 1 samples the next update's episodes during the
update; with more, episodes never wait. "Lag" is the mean of `rollout/policy_lag`. "Success" is that of the last five updates.
"To .6" is the time from the first update until five updates in a row have had a mean success of .6. "At equal time" is the mean
success of the last five updates that end before the fastest arm of the same latency has ended.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from flags import SMALL_RUN, command, new_parser, parse, run
from rich.console import Console

from envs.cabinet.env import CabinetEnv
from harness.grpo import train
from harness.run.display import Display
from harness.run.metrics import read_metrics
from harness.run.run_folder import prepare
from harness.run.versions import cpu_name
from harness.settings.command_line import parse as parse_flags
from harness.settings.presets import preset

_WINDOW, _SUCCESS = 5, 0.6


class SlowCabinet(CabinetEnv):
    """EH-Cabinet, each step of which takes time once training has begun (only then does a reset have a seed)."""

    def __init__(self, split: str = "train", latency_s: float = 0.0) -> None:
        super().__init__(split)
        self._latency_s = latency_s

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode. Its sleeps are drawn from its seed."""
        self._sleeps = None if seed is None else random.Random(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Sleeps, and then takes the step."""
        if self._sleeps is not None:
            time.sleep(self._sleeps.expovariate(1.0) * self._latency_s)
        return super().step(action)


def measure(latency_ms: float, staleness: int, folder: Path, *, updates: int, small: bool) -> list[dict[str, float]]:
    """Trains one arm; returns its metrics."""
    flags = ["--env", "Slow-Cabinet-v0", "--env-args", f'{{"latency_s": {latency_ms / 1000}}}', "--eval-tasks", "0"]
    flags += ["--rollout", "streaming", "--env-threads", "64", "--max-staleness", str(staleness), "--tis-cap", "2"]
    flags += SMALL_RUN if small else ["--updates", str(updates), "--k0", "30", "--wrapper", "fixed"]
    config = parse_flags(preset(flags), flags, prog="benchmarks/staleness.py")
    config = dataclasses.replace(config, out=folder / f"{latency_ms:g}-{staleness}")
    assert config.out is not None
    prepare(config)
    train(config, config.out, Display(Console(quiet=True)))
    return read_metrics(config.out / "metrics.jsonl")


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--latency-ms", type=float, nargs="+", default=[0.0, 50.0, 200.0])
    parser.add_argument("--max-staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--updates", type=int, default=30)
    args = parse(parser, latency_ms=[1.0], max_staleness=[0, 2], updates=1)
    gym.register("Slow-Cabinet-v0", entry_point=lambda **given: SlowCabinet(**given))
    print(command())
    print(f"{cpu_name()}, {args.updates} updates of 64 episodes, K = 30, streaming, 64 threads")
    print(f"{'latency':>9}{'staleness':>11}{'s / update':>12}{'lag':>6}{'success':>9}{'to .6':>8}{'at equal time':>15}")
    with tempfile.TemporaryDirectory() as folder:
        for latency in args.latency_ms:
            arms = {
                n: measure(latency, n, Path(folder), updates=args.updates, small=args.smoke) for n in args.max_staleness
            }
            seconds = {n: np.cumsum([row["time/update_s"] for row in rows]) for n, rows in arms.items()}
            least = min(float(at[-1]) for at in seconds.values())
            for n, rows in arms.items():
                success = np.array([row["rollout/success"] for row in rows])
                window = [float(success[max(0, i - _WINDOW + 1) : i + 1].mean()) for i in range(len(rows))]
                reached = [
                    at
                    for at, s, i in zip(seconds[n], window, range(len(rows)), strict=True)
                    if s >= _SUCCESS and i >= 4
                ]
                ended = max(1, int((seconds[n] <= least).sum()))
                lag = float(np.mean([row["rollout/policy_lag"] for row in rows]))
                print(
                    f"{latency:6g} ms{n:11}{np.median([row['time/update_s'] for row in rows]):12.2f}{lag:6.2f}{window[-1]:9.3f}"
                    f"{f'{reached[0]:.0f} s' if reached else '-':>8}{window[ended - 1]:15.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    run(main)
