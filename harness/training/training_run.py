"""The parts of a training run, and what it writes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from eh_gym import HorizonController
from harness.evaluation.held_out import HeldOutEvaluator
from harness.machine.ranks import Ranks
from harness.records.clock import Clock
from harness.records.episode_log import write_episodes
from harness.records.metrics import MetricsLog
from harness.rollout.batches import Batches
from harness.rollout.faults import Faults
from harness.sampling.weights import SampledWeights
from harness.settings.grpo import GRPOConfig
from harness.terminal.interrupts import Interrupts
from harness.training.checkpoint import save_checkpoint, write_training_state
from harness.types.trajectory import Trajectory
from harness.update.learner import Learner
from harness.update.try_update import try_update
from harness.update.update import select_episodes


@dataclass
class TrainingRun:
    """A training run that is ready to go on; a context manager that closes what it opened.

    `next_update` is the first update that is still to be done. Without a controller, episodes have no limit. Only the
    first rank has a `log`, and the folder of the `clone` with which the policy has begun. `saved` is the update with
    which its newest checkpoint continues. `whole` is where lost updates begin again: an update, and the controller's
    state before it.
    """

    config: GRPOConfig
    folder: Path
    ranks: Ranks
    next_update: int
    batches: Batches
    controller: HorizonController | None
    learner: Learner
    weights: SampledWeights
    held_out: HeldOutEvaluator
    evaluations: dict[str, Any]
    clock: Clock
    log: MetricsLog | None
    interrupts: Interrupts
    clone: Path | None = None
    saved: int | None = None
    faults: Faults = field(default_factory=Faults)
    whole: tuple[int, dict[str, Any]] = (0, {})

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as closing:  # closes all, the last one first, even if an environment fails to close
            if self.log is not None:
                closing.callback(self.log.close)
            if error is not None:  # after its last update a run still evaluates
                closing.callback(self.weights.close)
            closing.callback(self.batches.close)

    def try_update(self, say: Callable[[str], None]) -> None:
        if self.learner.policy.model.device.type == "cuda":
            self.weights.before_training()
            if note := try_update(self.learner, self.config):
                say(f"note: {note}")
            self.weights.wake()

    def write(self, update: int, metrics: Mapping[str, float], trajectories: Sequence[Trajectory]) -> None:
        if self.log is None:
            return
        self.log.write(update, metrics)
        write_episodes(
            self.folder / "episodes", update, trajectories, select_episodes(trajectories, self.config.loss)[0]
        )

    def remember(self, update: int) -> None:
        """Remembers where to go on if all episodes of this update and the next are lost. Call it before K moves."""
        if not self.faults.lost:
            self.whole = update, self.controller.state_dict() if self.controller is not None else {}

    def save_before_lost(self) -> None:
        """Writes a checkpoint with which the lost updates are done again. They have taught nothing."""
        update, state = self.whole
        if self.controller is not None:
            self.controller.load_state_dict(state)
        self.save(update)

    def save(self, next_update: int) -> None:
        """Writes a checkpoint, which no signal disturbs. A run that is resumed from it continues with `next_update`."""
        if self.saved is not None and next_update <= self.saved:
            return  # nothing has changed since, or the updates since have taught nothing
        extra = {
            "next_update": next_update,
            "totals": self.clock.state_dict(),
            "controller": self.controller.state_dict() if self.controller is not None else None,
            "evaluations": self.evaluations,
        }
        write = functools.partial(
            write_training_state,
            extra=extra,
            model=self.learner.policy.model,
            optimizer=self.learner.optimizer,
            ranks=self.ranks,
        )
        keep = self.config.run.keep_checkpoints
        with self.interrupts.after():
            save_checkpoint(self.folder / "checkpoints", next_update, write=write, keep=keep, ranks=self.ranks)
            self.saved = next_update
