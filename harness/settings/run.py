"""Flags about the run itself: its seed, its length, its folder, and the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from eh_gym.errors import ConfigError
from harness.settings.ranges import Range

__all__ = ["RunFlags"]

_TRACKERS = ("tensorboard", "wandb")


@dataclass(frozen=True)
class RunFlags:
    """How long the run is, and where it is kept."""

    updates: Annotated[int, Range(1)] = 200
    """The number of policy updates."""
    seed: int = 0
    """Draws a tiny model's first weights, the tasks, and every token."""
    out: Path | None = None
    """The folder of the run, which must hold none yet. By default runs/ENV-WRAPPER-seedSEED, for a sweep runs/sweep."""
    resume: Path | None = None
    """Continue the run in this folder with its own settings. Only --updates and flags about the machine count besides
    (docs/troubleshooting.md)."""
    recipe: Path | None = None
    """A TOML file of settings, such as those in recipes/. Flags override it."""
    device: str = "auto"
    """The device: cpu, cuda, cuda:1, mps. auto takes a GPU if there is one."""
    threads: Annotated[int, Range(0)] = 1
    """The number of torch threads. One is fastest for tiny models; 0 leaves torch's default."""
    rank_timeout_s: Annotated[float, Range(0, above=True)] = 1800.0
    """With torchrun: the seconds that a rank waits for another; more than the longest rollout, and than the first rank's warm
    start."""
    checkpoint_every: Annotated[int, Range(1)] = 10
    """The number of updates between checkpoints."""
    keep_checkpoints: Annotated[int, Range(1)] = 2
    """The number of checkpoints that are kept."""
    log: str = "tensorboard"
    """Where the metrics go beside metrics.jsonl: tensorboard, wandb, or both with a comma between."""

    def trackers(self) -> tuple[str, ...]:
        """`log` as names, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.log.split(",") if name.strip()))

    def check_run(self) -> None:
        """Raises ConfigError if the metrics would go to no known place."""
        if unknown := set(self.trackers()) - set(_TRACKERS):
            raise ConfigError(f"log can be {', '.join(_TRACKERS)}, not {', '.join(sorted(unknown))}; change --log")
