"""The log of a run's metrics: one JSON line per update, which also goes to the trackers of `--trackers`."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eh_gym.errors import StateError
from harness.records.files import room_for, write_whole
from harness.records.trackers import open_trackers

TOLERANCE = 0.02
"""How far below another success one is as good, as a share of episodes. The standard error may be more."""


class MetricsLog:
    """Appends metrics to ``metrics.jsonl``, and sends them to the trackers.

    Args:
        run_dir: The run's folder.
        next_update: The first update that will be written. A run that was killed after its last checkpoint has lines of
            this update and later ones. They are removed, and TensorBoard hides their points.
        trackers: Some of "tensorboard" and "wandb".
        settings: The run's settings, which Weights & Biases shows.
    """

    def __init__(
        self,
        run_dir: Path,
        next_update: int = 0,
        trackers: Sequence[str] = ("tensorboard",),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = run_dir / "metrics.jsonl"
        kept = [row for row in read_metrics(self._path) if row["update"] < next_update]
        if len(kept) != next_update:
            raise StateError(
                f"{self._path} holds {len(kept)} updates before update {next_update}, where the checkpoint goes on; "
                f"restore the file, or delete the checkpoints after update-{len(kept):06d} to go on from an older one"
            )
        write_whole(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        self._trackers = open_trackers(trackers, settings or {}, run_dir, next_update)

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of one update, which are on disk when this returns.

        A NaN or infinite value becomes null in the file. Trackers do not get it.
        """
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        row = {"update": update} | {name: finite.get(name) for name in metrics}
        with room_for(self._path), self._path.open("a", encoding="ascii") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for tracker in self._trackers:
            tracker.write(update, finite)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a log, a dict per update; none without a file. Raises StateError for a damaged one."""
    rows: list[dict[str, Any]] = []
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise StateError(f"{path} can't be read ({error.strerror}); restore the file, or start a new run") from error
    whole = content.split(b"\n")[:-1]  # the part after the last newline is not a whole line
    for update, line in enumerate(whole):
        try:
            rows.append(json.loads(line))
            if rows[-1]["update"] != update:
                raise ValueError(f"its update is {rows[-1]['update']!r}, not {update}")
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"line {update + 1} of {path} is not a row of metrics ({error!r:.200}); restore the file, or delete "
                f"this line, those below it and the checkpoints after update-{update:06d} to go on from an older one"
            ) from error
    return rows


def mean_reward(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns an evaluation's mean reward by its heading in tables; empty if it is the success."""
    reward, success = result.get("reward_mean"), result.get("mean_at_k")
    return {} if reward in (None, success) else {"mean reward": f"{reward:.4g}"}


def as_good(success: Any, other: float, error: Any = 0.0) -> Any:
    """Whether a K is as good as another: its success is at most 2 points lower, or `error` if that is more.

    `error` is the standard error of the difference.
    """
    return other - success <= np.maximum(error, TOLERANCE) + 1e-12
