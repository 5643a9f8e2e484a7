"""`python -m harness.grpo`: trains an agent with GRPO, under the horizon that `--wrapper` names.

`train` is the whole loop. Under torchrun every process runs it with its share of the episodes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from eh_gym.errors import ConfigError, EHError, StateError
from harness.settings.command_line import errors_in_one_line, given_flags, parse
from harness.settings.grpo import FIRST_FLAGS, GRPOConfig
from harness.settings.horizon import check_horizon_flags
from harness.settings.presets import preset
from harness.terminal.display import Display

if TYPE_CHECKING:
    from harness.machine.ranks import Ranks
    from harness.rollout.given import Given
    from harness.training.training_run import Run

__all__ = ["OnUpdate", "carry_out", "main", "train"]

OnUpdate = Callable[[int, Mapping[str, float]], object]
"""What is called after an update, with its index and its metrics."""


def train(
    config: GRPOConfig,
    run_dir: Path,
    display: Display,
    *,
    resume: bool = False,
    ranks: Ranks | None = None,
    given: Given | None = None,
    on_update: OnUpdate | None = None,
) -> dict[str, Any]:
    """Trains one policy; everything it leaves is in `run_dir`. This is the loop: `harness.api.train` is for Python programs.

    Args:
        config: The settings.
        run_dir: An empty or new folder, or with `resume` the folder of a run that was stopped.
        display: Shows what happens.
        resume: Go on from the newest checkpoint, if there is one.
        ranks: The processes that train together; None for this one alone.
        given: The objects of a Python program in place of those that the settings name.
        on_update: Called after each update, on the first rank. If it returns True, the run ends with this update.

    Returns:
        The evaluations ``{"before": …, "after": …}``, as in ``evaluation.json``.

    Raises:
        KeyboardInterrupt: After Ctrl-C or SIGTERM. If training had begun, the last whole update is saved; a second signal stops
            without that.
    """
    from harness.rollout.outcomes import tell_controller
    from harness.terminal.interrupts import Interrupts, Stopped
    from harness.training.build import build  # torch takes seconds to import, and `--help` needs none of it

    started = time.perf_counter()
    with (
        Interrupts(display.note) as interrupts,
        build(config, run_dir, display, resume=resume, ranks=ranks, given=given, interrupts=interrupts) as run,
    ):
        if run.ranks.first and run.next_update < config.updates:
            (run_dir / "evaluation.json").unlink(missing_ok=True)  # a run that has it has ended
        run.try_update()
        if not run.evaluations:
            run.evaluations["before"] = run.held_out.sampled_and_greedy(display, "before training")
            run.save(0)
        run.clock.start()
        done = run.next_update
        with display.updates(run.next_update, config.updates) as progress, interrupts.held():
            for update in range(run.next_update, config.updates):
                times: dict[str, float] = {}
                with run.clock.timed("time/update_s", times):
                    try:
                        trajectories, metrics = run.batches.take(update, progress.batch_began)
                    except Stopped:
                        run.save(update)
                        raise
                    with run.batches.paused():
                        metrics |= tell_controller(run.controller, trajectories)
                    run.weights.before_training()
                    run.batches.prepare(update + 1, progress.batch_began)
                    with run.clock.timed("time/train_s", times):
                        metrics |= run.learner.update(trajectories, update)
                        with run.batches.paused():
                            run.weights.hand_over()
                metrics |= times | run.clock.count(metrics["tokens/update"])
                if config.eval_every and (update + 1) % config.eval_every == 0:
                    with run.clock.stopped("time/evaluation_s", metrics):
                        metrics |= run.held_out.during_training(progress, update)
                run.write(update, metrics, trajectories)
                done = update + 1
                stops = on_update is not None and run.ranks.first and bool(on_update(update, metrics))
                stops, interrupted = map(any, zip(*run.ranks.gather([(stops, interrupts.heard)]), strict=True))
                if stops or interrupted or done % config.checkpoint_every == 0 or done == config.updates:
                    run.save(done)
                progress.update_ended(update, metrics)
                if interrupted:
                    raise Stopped
                if stops:
                    break
    _finish(run, display, started, updates=done)
    return run.evaluations


def _finish(run: Run, display: Display, started: float, *, updates: int) -> None:
    """Saves and evaluates the policy after so many updates. ``evaluation.json`` is written last: a run that has it has ended."""
    from harness.records.files import full_disk_named, write_whole

    config, folder, training_s = run.config, run.folder, run.clock.seconds
    with full_disk_named(f"the disk is full, and {folder / 'model'} was not written"):
        run.weights.save(folder / "model")
    if "after" not in run.evaluations:
        run.evaluations["after"] = run.held_out.sampled_and_greedy(display, "after training")
    if run.ranks.first:
        write_whole(folder / "evaluation.json", json.dumps(run.evaluations, indent=2))
        display.summary(
            replace(config, updates=updates), folder, run.evaluations, training_s, time.perf_counter() - started
        )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    words = sys.argv[1:] if argv is None else argv
    console = Console()
    with errors_in_one_line(console):
        wanted = parse(preset(words), words, prog="python -m harness.grpo", first=FIRST_FLAGS)
        if wanted.resume is None:
            _check_effects(wanted, words)
        updates = wanted.updates if wanted.resume and "updates" in given_flags(words).values() else None
        carry_out(wanted, console, words=words, updates=updates)


def _check_effects(config: GRPOConfig, words: Sequence[str]) -> None:
    """Raises ConfigError for flags of the command line that this run does not read. A preset may set them all the same."""
    for flag, name in given_flags(words).items():
        if name == "warm_start" and not config.warm_start.episodes and not flag.endswith(".episodes"):
            raise ConfigError(f"{flag} is for a warm start, and this run has none; add --warm-start.episodes 200")
        if name == "gpu_memory_utilization" and config.sampler != "vllm":
            raise ConfigError(
                f"{flag} is for --sampler vllm, got --sampler {config.sampler}; servers have their own flags"
            )
    # evaluations have k_max
    check_horizon_flags(words, config.wrapper, {"k_max"})


def carry_out(
    wanted: GRPOConfig,
    console: Console,
    *,
    words: Sequence[str] | None = None,
    updates: int | None = None,
    given: Given | None = None,
    on_update: OnUpdate | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Begins or resumes a run, alone or with the other ranks, and trains it to its end.

    Args:
        wanted: The settings; with `resume` those of the run count.
        console: Shows what happens.
        words: The command line that gave the settings; None for a Python program.
        updates: The new length of a run that is resumed; None leaves it.
        given: The objects of a Python program in place of those that the settings name.
        on_update: See `train`.

    Returns:
        The folder of the run, and its evaluations.
    """
    from torch import OutOfMemoryError

    from harness.machine.ranks import join
    from harness.machine.runtime import choose_dtype, library_settings, pick_device
    from harness.records.files import lock_folder
    from harness.records.run_folder import forget, prepare, saved_config

    flags = words or ()
    if wanted.resume is None:  # chosen once: a resumed run computes as it began
        wanted = replace(wanted, dtype=choose_dtype(wanted.dtype, pick_device(wanted.device)))
    begun: Path | None = None  # the folder of a run that this process has begun
    run_dir: Path | None = None
    try:
        settings = wanted if wanted.resume is None else saved_config(wanted.resume, wanted, flags)
        ranks = join(device=pick_device(settings.device), timeout_s=settings.rank_timeout_s)
        config, run_dir, resume = ranks.from_first(prepare(wanted, flags) if ranks.first else (wanted, Path(), False))
        busy = f"another process trains in {run_dir}; wait for its end, or end it, before this one resumes it"
        with library_settings(), lock_folder(run_dir, busy) if ranks.first else contextlib.nullcontext():
            begun = run_dir if ranks.first and not resume else None
            display = Display(console if ranks.first else Console(quiet=True))
            if resume and updates is not None:
                config = ranks.from_first(_lengthened(run_dir, config, updates, display) if ranks.first else config)
            display.plan(config, run_dir, resume=resume)
            ignored = [
                flag
                for flag, name in given_flags(flags).items()
                if name not in ("resume", "recipe") and getattr(wanted, name, None) != getattr(config, name, None)
            ]
            if resume and ignored:
                display.note(f"note: the run goes on with its own settings; ignored: {', '.join(sorted(ignored))}")
            evaluations = train(config, run_dir, display, resume=resume, ranks=ranks, given=given, on_update=on_update)
        if settings.sampler != "vllm":  # an engine beside a rank closes its torch.distributed when the process ends
            ranks.close()
        return run_dir, evaluations
    except EHError:
        if begun is not None:
            forget(begun)
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise StateError(f"{error}; free some space, then {_how_to_go_on(run_dir, words)}") from error
    except OutOfMemoryError as error:
        why = str(error).removeprefix("CUDA out of memory. ")[:200]
        raise StateError(
            f"the GPU ran out of memory ({why}); continue with --resume {run_dir} and a lower "
            "--tokens-per-microbatch, --slots or --gpu-memory-utilization, or with --gradient-checkpointing"
        ) from error
    except KeyboardInterrupt:
        if run_dir is None:
            raise
        if not ranks.first:
            sys.exit(130)  # the first rank says it
        raise KeyboardInterrupt(_how_to_go_on(run_dir, words)) from None


def _how_to_go_on(run_dir: Path | None, words: Sequence[str] | None) -> str:
    from harness.records.run_folder import latest_checkpoint, update_of

    if run_dir is None:
        return "run it again"
    how = f"train(resume={str(run_dir)!r})" if words is None else f"--resume {run_dir}"
    checkpoint = latest_checkpoint(run_dir / "checkpoints")
    return f"continue with {how}, from {f'update {update_of(checkpoint)}' if checkpoint else 'its beginning'}"


def _lengthened(run_dir: Path, config: GRPOConfig, updates: int, display: Display) -> GRPOConfig:
    """Writes another number of updates into a run's settings, and returns the present settings with it.

    Raises:
        ConfigError: The run has done more updates.
    """
    from harness.records.files import write_whole
    from harness.records.metrics import read_metrics

    log, path = run_dir / "metrics.jsonl", run_dir / "config.json"
    done = len(read_metrics(log)) if log.exists() else 0
    longer = replace(config, updates=updates)
    if updates < done:
        raise ConfigError(f"the run has done {done} updates, got --updates {updates}; give {done} or more")
    if updates == config.updates:
        return config
    saved = GRPOConfig.from_json(path.read_text(encoding="utf-8"))  # without what this machine has otherwise
    write_whole(path, replace(saved, updates=updates).to_json())
    display.note(f"the run has {updates} updates now, instead of {config.updates}")
    return longer


if __name__ == "__main__":
    main()
