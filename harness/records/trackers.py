"""Where a run's metrics go beside metrics.jsonl: TensorBoard and Weights & Biases (`--trackers`).

If a service fails during a run, a warning says so, and the service gets no more metrics.
"""

import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from harness.records.files import room_for, write_whole
from harness.records.glossary import LOOK_AT


class _TensorBoard:
    """Writes a file of events into the run's folder, whose name TensorBoard shows. The tab "Custom Scalars" has
    `LOOK_AT`. Points of `next_update` and later ones are hidden.

    The thread of torch's SummaryWriter would print a traceback if the disk is full.
    """

    def __init__(self, run_dir: Path, next_update: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from torch.utils.tensorboard.summary import custom_scalars

        self._path = run_dir / f"events.out.tfevents.{time.time():.6f}"
        self._append(file_version="brain.Event:2")
        self._append(step=next_update, session_log=SessionLog(status=SessionLog.START))
        charts = {name: ["Multiline", [f"{name}$"]] for name in LOOK_AT}
        self._append(summary=custom_scalars({"look at these first": charts}))

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._append(step=update, summary=Summary(value=values))

    def _append(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        with room_for(self._path), self._path.open("ab") as file:
            RecordWriter(file).write(Event(wall_time=time.time(), **event).SerializeToString())

    def close(self) -> None:
        pass


class _WeightsAndBiases:
    """A run in Weights & Biases, whose package reads the project from WANDB_PROJECT."""

    def __init__(self, run_dir: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        kept = run_dir.resolve() / "tracker-id"  # drawn once, so that a resumed run continues there
        if not kept.exists():
            write_whole(kept, uuid.uuid4().hex[:8])
        self._lost = False
        self._run = wandb.init(
            id=kept.read_text(encoding="ascii"),
            name=run_dir.name,
            dir=run_dir,
            config=dict(settings),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", quiet=True),
        )

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        self._try(lambda: self._run.log(dict(metrics), step=update))

    def close(self) -> None:
        self._try(self._run.finish)

    def _try(self, call: Callable[[], object]) -> None:
        if self._lost:
            return
        try:
            call()
        except Exception as error:  # a failing service must not end a run
            self._lost = True
            text = f"wandb failed ({error}), and gets nothing more from this run; metrics.jsonl has all of it"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def open_trackers(
    names: Sequence[str], settings: Mapping[str, Any], run_dir: Path, next_update: int
) -> list[_TensorBoard | _WeightsAndBiases]:
    """Opens the trackers of a new or resumed run.

    In Weights & Biases, the name of the folder and the id in its file ``tracker-id`` name the run.
    """
    made: list[_TensorBoard | _WeightsAndBiases] = []
    if "tensorboard" in names:
        made.append(_TensorBoard(run_dir, next_update))
    if "wandb" in names:
        try:
            made.append(_WeightsAndBiases(run_dir, settings))
        except Exception as error:  # the package raises many errors, such as for a missing login
            fix = "run wandb login, or set WANDB_MODE=offline, or leave wandb out of --trackers"
            if not next_update:
                raise ConfigError(f"--trackers wandb did not begin ({error}); {fix}") from error
            text = f"wandb did not begin again ({error}), and gets nothing more from this run; {fix}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return made
