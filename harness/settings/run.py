"""What a run keeps, and how long its processes wait for each other."""

from dataclasses import dataclass
from typing import Annotated

from eh_gym.errors import ConfigError
from eh_gym.ranges import Range
from harness.settings.section import Changes, Section

_TRACKERS = ("tensorboard", "wandb")


@dataclass(frozen=True)
class Run(Section):
    """What a run keeps."""

    changes = Changes.SETUP

    checkpoint_every: Annotated[int, Range(1)] = 10
    """The number of updates between checkpoints."""
    keep_checkpoints: Annotated[int, Range(1)] = 2
    """The number of checkpoints that are kept."""
    trackers: str = "tensorboard"
    """Where the metrics go beside metrics.jsonl: tensorboard, wandb, or both with a comma between."""
    rank_timeout_s: Annotated[float, Range(0, above=True), Changes.MACHINE] = 1800.0
    """With torchrun: the seconds that a rank waits for another. They must exceed the longest rollout and the first
    rank's warm start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := set(self.tracker_names()) - set(_TRACKERS):
            raise ConfigError(
                f"trackers can be {', '.join(_TRACKERS)}, not {', '.join(sorted(unknown))}; change --trackers"
            )

    def tracker_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name.strip() for name in self.trackers.split(",") if name.strip()))
