"""The loop of a training run: play, move K, learn, and hand the weights over.

Under torchrun every process runs it with its share of the episodes.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eh_gym.errors import EHError, UserCodeError
from harness.machine.ranks import ALONE, Ranks
from harness.records.files import room_for, write_whole
from harness.records.run_folder import lengthen
from harness.rollout.environment import NOTHING, Given
from harness.rollout.outcomes import tell_controller
from harness.settings.grpo import GRPOConfig
from harness.terminal.display import Display, UpdateBars
from harness.terminal.interrupts import Interrupts, Stopped
from harness.training.before import evaluate_before
from harness.training.build import build
from harness.training.training_run import TrainingRun
from harness.types.trajectory import Trajectory

OnUpdate = Callable[[int, Mapping[str, float]], object]
"""A function that is called after an update, with its index and its metrics."""


def train_loop(
    config: GRPOConfig,
    run_dir: Path,
    display: Display,
    *,
    resume: bool = False,
    ranks: Ranks = ALONE,
    given: Given = NOTHING,
    on_update: OnUpdate | None = None,
) -> dict[str, Any]:
    """Trains one policy, and leaves everything in `run_dir`. Python programs call `harness.train` instead.

    Args:
        config: The settings.
        run_dir: An empty or new folder, or with `resume` the folder of a run that was stopped.
        display: Shows the progress.
        resume: Continue from the newest checkpoint, if there is one.
        ranks: The processes that train together.
        given: Objects of a Python program that replace those that the settings name.
        on_update: Called after each update, on the first rank. If it returns True, the run ends.

    Returns:
        The evaluations ``{"before": …, "after": …}``, as in ``evaluation.json``.

    Raises:
        KeyboardInterrupt: After Ctrl-C or SIGTERM. If training has begun, the last whole update is saved first. A
            second signal stops the run without that.
        UserCodeError: The environment or the agent failed in all episodes of two updates, or of the last one.
    """
    started = time.perf_counter()
    with (
        Interrupts(display.note) as interrupts,
        build(config, run_dir, display, resume=resume, ranks=ranks, given=given, interrupts=interrupts) as run,
    ):
        if resume and run.ranks.first:  # nothing refuses it any more
            lengthen(run_dir, config, display.note)
        if run.ranks.first and run.next_update < config.updates:
            (run_dir / "evaluation.json").unlink(missing_ok=True)  # a run that has it has ended
        run.try_update(display.note)
        if not run.evaluations:
            run.evaluations["before"] = evaluate_before(run, display)
            run.save(0)
        run.clock.start()
        done = run.next_update
        with display.updates(run.next_update, config.updates) as progress, interrupts.held():
            for update in range(run.next_update, config.updates):
                trajectories, metrics = _play_and_learn(run, update, progress)
                if config.evaluation.every and (update + 1) % config.evaluation.every == 0:
                    with run.clock.stopped("time/evaluation_s", metrics):
                        metrics |= run.held_out.during_training(progress, update)
                run.write(update, metrics, trajectories)
                done = update + 1
                try:
                    fault = run.faults.check(trajectories, last=done == config.updates)
                except UserCodeError:
                    run.save_before_lost()
                    raise
                stops = on_update is not None and run.ranks.first and bool(on_update(update, metrics))
                stops, interrupted = map(any, zip(*run.ranks.gather([(stops, interrupts.received)]), strict=True))
                if stops or interrupted or done % config.run.checkpoint_every == 0 or done == config.updates:
                    run.save(done)
                progress.update_ended(update, metrics, trajectories, fault)
                if interrupted:
                    raise Stopped
                if stops:
                    break
    _finish(run, display, started, updates=done)
    return run.evaluations


def _play_and_learn(run: TrainingRun, update: int, progress: UpdateBars) -> tuple[list[Trajectory], dict[str, float]]:
    """Plays a batch, moves K, trains, and hands the weights over. Returns the episodes and the update's metrics."""
    times: dict[str, float] = {}
    with run.clock.timed("time/update_s", times):
        try:
            trajectories, metrics = run.batches.take(update, progress.batch_began)
        except Stopped:
            run.save(update)
            raise
        except EHError:
            if run.ranks.size == 1:  # the other ranks don't know of it
                run.save(update)
            raise
        with run.batches.paused():
            run.remember(update)
            metrics |= tell_controller(run.controller, trajectories)
        run.weights.before_training()
        run.batches.prepare(update + 1, progress.batch_began)
        with run.clock.timed("time/train_s", times):
            metrics |= run.learner.update(trajectories, update)
            with run.batches.paused():
                run.weights.hand_over()
    return trajectories, metrics | times | run.clock.count(metrics["tokens/update"])


def _finish(run: TrainingRun, display: Display, started: float, *, updates: int) -> None:
    """Saves and evaluates the trained policy. ``evaluation.json`` is written last: a run that has it has ended."""
    config, folder, training_s = run.config, run.folder, run.clock.seconds
    model = folder / "model"
    with room_for(model, half=model):
        run.weights.save(model)
    if "after" not in run.evaluations:
        run.evaluations["after"] = run.held_out.sampled_and_greedy(display, "after training")
    if run.ranks.first:
        write_whole(folder / "evaluation.json", json.dumps(run.evaluations, indent=2))
        display.summary(
            replace(config, updates=updates), folder, run.evaluations, training_s, time.perf_counter() - started
        )
