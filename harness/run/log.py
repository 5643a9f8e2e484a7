"""The logs of a training run after each update: its metrics and its episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.run.episode_log import write_episodes
from harness.run.metrics import MetricsLog
from harness.run.trackers import Trackers
from harness.types.trajectory import Trajectory

__all__ = ["RunLog"]


class RunLog:
    """Writes the logs of a run.

    Args:
        folder: The run's folder.
        next_update: The first update that will be written.
        episodes_every: Episodes are written every so many updates; 0 writes none.
        selected: Returns the episodes that are in the loss, with their advantages.
        silent: Writes nothing, for a process that is not the first of its run.
        trackers: Where the metrics go beside ``metrics.jsonl``.
    """

    def __init__(
        self,
        folder: Path,
        next_update: int,
        *,
        episodes_every: int,
        selected: Callable[[Sequence[Trajectory]], list[tuple[Trajectory, float]]],
        silent: bool,
        trackers: Trackers,
    ) -> None:
        self._folder, self._every, self._selected = folder, episodes_every, selected
        self._metrics = None if silent else MetricsLog(folder, next_update, trackers)

    def write(self, update: int, metrics: Mapping[str, float], trajectories: Sequence[Trajectory]) -> None:
        """Writes one update; its metrics are on disk when this returns."""
        if self._metrics is None:
            return
        self._metrics.write(update, metrics)
        if self._every and update % self._every == 0:
            write_episodes(self._folder / "episodes", update, trajectories, self._selected(trajectories))

    def close(self) -> None:
        """Closes the files."""
        if self._metrics is not None:
            self._metrics.close()
