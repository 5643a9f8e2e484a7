"""Carries out a training run: opens its folder, trains, and says after a stop how to go on."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console
from torch import OutOfMemoryError

from eh_gym.errors import ConfigError, StateError, UserCodeError
from envs.make import registered
from harness.machine.ranks import Ranks, join
from harness.machine.runtime import choose_dtype, library_settings, pick_device
from harness.records.files import DiskFull, lock_folder, room_for
from harness.records.metrics import read_metrics
from harness.records.run_folder import folder_of, forget, latest_checkpoint, prepare, update_of
from harness.rollout.environment import NOTHING, Given
from harness.settings.environment import GIVEN
from harness.settings.grpo import GRPOConfig
from harness.settings.section import advice_in_python, python_names
from harness.terminal.display import Display
from harness.training.command import RunRequest
from harness.training.loop import OnUpdate, train_loop


def carry_out(
    request: RunRequest, console: Console, *, given: Given = NOTHING, on_update: OnUpdate | None = None
) -> tuple[Path, dict[str, Any]]:
    """Begins or resumes a run, alone or with the other ranks, and trains it to its end. Returns its folder and its
    evaluations.

    The objects of `given` replace those that the settings name.
    """
    config = _settled(request)
    ranks = join(device=pick_device(config.model.device), timeout_s=config.run.rank_timeout_s)
    names = python_names(config) if request.python else {}
    display = Display(console if ranks.first else Console(quiet=True), names)
    with advice_in_python(names), library_settings(), _opened(request, config, ranks) as run_dir:
        if request.updates is not None:
            config = replace(config, updates=request.updates)
            if ranks.first:
                _check_length(run_dir, config.updates)
        played = config.environment
        if played.env_workers == "local" and not played.agent and not played.env.startswith(GIVEN):
            for name in played.environments():
                registered(name)  # a wrong name is refused before the plan is shown
        for note in request.notes:
            display.note(note)
        resume = request.resume is not None
        display.plan(config, run_dir, resume=resume, controller=given.controller)
        evaluations = train_loop(config, run_dir, display, resume=resume, ranks=ranks, given=given, on_update=on_update)
    if not config.sampling.shares_gpu:  # an engine beside a rank closes its torch.distributed when the process ends
        ranks.close()
    return run_dir, evaluations


def _settled(request: RunRequest) -> GRPOConfig:
    """The settings with the type that fits this machine. It is chosen once, so that a resumed run computes as it
    began.
    """
    config = request.config
    if request.resume is not None:
        return config
    dtype = choose_dtype(config.model.dtype, pick_device(config.model.device))
    return replace(config, model=replace(config.model, dtype=dtype))


@contextlib.contextmanager
def _opened(request: RunRequest, config: GRPOConfig, ranks: Ranks) -> Iterator[Path]:
    """Makes or finds the folder of the run, and locks it. An error in the block says how to go on.

    A new run that is refused, or fails before its first checkpoint, leaves nothing.
    """
    run_dir: Path | None = request.resume
    new = folder_of(config) if ranks.first and request.resume is None else None
    made = new is not None and not new.exists()
    try:
        with room_for("a file of the run"):
            run_dir = ranks.from_first(request.resume or (prepare(config, new) if ranks.first else Path()))
            busy = f"another process trains in {run_dir}; wait for its end, or end it, before this one resumes it"
            with lock_folder(run_dir, busy) if ranks.first else contextlib.nullcontext():
                try:
                    yield run_dir
                except Exception as error:
                    if new and not isinstance(error, (DiskFull, OSError, OutOfMemoryError)):
                        forget(new, made=made)
                    if isinstance(error, UserCodeError) and latest_checkpoint(run_dir / "checkpoints"):
                        raise UserCodeError(
                            f"{error}; fix it, then {_how_to_go_on(run_dir, request)}"
                        ) from error.__cause__
                    raise
    except DiskFull as error:
        raise StateError(f"{error}; free some space, then {_how_to_go_on(run_dir, request)}") from error
    except OutOfMemoryError as error:
        why = str(error).removeprefix("CUDA out of memory. ")[:200]
        engine = config.sampling.memory_flag and f", {config.sampling.memory_flag}"
        raise StateError(
            f"the GPU ran out of memory ({why}); continue with --resume {quote(str(run_dir))} and a lower "
            f"--tokens-per-microbatch{engine} or --slots, or with --recompute all"
        ) from error
    except KeyboardInterrupt:
        if not ranks.first:
            sys.exit(130)  # the first rank says it
        raise KeyboardInterrupt(_how_to_go_on(run_dir, request)) from None


def _how_to_go_on(run_dir: Path | None, request: RunRequest) -> str:
    if run_dir is None:
        return "run it again"
    objects = {"env": request.config.environment.env, "controller": request.config.wrapper}
    again = "".join(f", {name}=..." for name, given in objects.items() if given.startswith(GIVEN))
    how = f"train(resume={str(run_dir)!r}{again})" if request.python else f"--resume {quote(str(run_dir))}"
    checkpoint = latest_checkpoint(run_dir / "checkpoints")
    return f"continue with {how}, from {f'update {update_of(checkpoint)}' if checkpoint else 'its beginning'}"


def _check_length(run_dir: Path, updates: int) -> None:
    done = len(read_metrics(run_dir / "metrics.jsonl"))
    if updates < done:
        raise ConfigError(f"the run has done {done} updates, got --updates {updates}; give {done} or more")
