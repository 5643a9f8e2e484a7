"""The folder of a run: a new run makes it and writes its settings into it, and a resumed run reads them again."""

import itertools
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shlex import quote

from eh_gym.errors import ConfigError, StateError
from envs.make import absolute
from harness.records.files import lock_folder, read_object, write_whole
from harness.records.metrics import read_metrics
from harness.records.versions import package_versions
from harness.settings.grpo import GRPOConfig, flat_settings

_FILE = re.compile(r"(?:^|(?<=,))[^,]*\.py(?=:)")
_CHECKPOINT = re.compile(r"update-(\d{6,})")


def folder_of(config: GRPOConfig) -> Path:
    name = f"{config.environment.name}-{config.wrapper.rpartition(':')[2]}-seed{config.seed}"
    run_dir = config.out or free_folder(Path("runs") / name)
    if run_dir == Path():  # also for an empty text
        raise ConfigError("out is the current folder; give the run one of its own: --out runs/NAME")
    return run_dir


def prepare(config: GRPOConfig, run_dir: Path | None = None) -> Path:
    run_dir = run_dir or folder_of(config)
    settings = run_dir / "config.json"
    taken = ConfigError(
        f"{run_dir} already holds a run; continue it with --resume {quote(str(run_dir))}, or choose another --out"
    )
    if settings.exists():
        raise taken
    with lock_folder(run_dir, str(taken)):  # if several processes begin at once, only one gets it
        if settings.exists():
            raise taken
        write_whole(run_dir / "versions.json", json.dumps(package_versions(), indent=2))
        write_whole(settings, config.to_json())  # written last: a folder that has it holds a run
    return run_dir


def saved_config(run_dir: Path, env: str = "") -> GRPOConfig:
    """Reads the settings of the run in a folder. `env` names the file of its environment, if that was moved."""
    path = run_dir / "config.json"
    if not path.exists():
        raise ConfigError(f"no run to resume in {run_dir}: it has no config.json; give the run's folder")
    saved = read_object(path)
    before, env = str(flat_settings(saved).get("env")), absolute(env)
    if gone := _missing(before):
        wanted = _FILE.sub("FILE.py", before)
        if _missing(env) or _FILE.sub("FILE.py", env) != wanted:
            raise ConfigError(
                f"the run's environment file {gone[0]} is missing; put it back, or name it with --env {wanted}"
            )
        saved["environment"]["env"] = env
    try:
        return GRPOConfig.from_json(json.dumps(saved))
    except StateError as error:
        raise StateError(
            f"{path} can't be resumed from ({error}); it was edited or damaged, is of another version or of a model: "
            "restore it, or give the folder of a run"
        ) from error


def _missing(env: str) -> list[str]:
    return [file for file in _FILE.findall(env) if not Path(file).is_file()]


def lengthen(run_dir: Path, config: GRPOConfig, say: Callable[[str], None]) -> None:
    saved = saved_config(run_dir, config.environment.env)  # without the changes for this machine
    write_whole(run_dir / "config.json", replace(saved, updates=config.updates).to_json())
    if config.updates != saved.updates:
        say(f"the run has {config.updates} updates now, instead of {saved.updates}")


def checkpoint_name(update: int) -> str:
    return f"update-{update:06d}"


def update_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("update-"))


def checkpoints_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if _CHECKPOINT.fullmatch(path.name)]
    return sorted(paths, key=update_of)


def latest_checkpoint(folder: Path) -> Path | None:
    return next(reversed(checkpoints_in(folder)), None)


def checkpoint_to_resume(run_dir: Path) -> Path | None:
    """Returns the newest checkpoint of a run; None if the run was stopped before its first one."""
    checkpoint = latest_checkpoint(run_dir / "checkpoints")
    path = run_dir / "metrics.jsonl"
    if checkpoint is None and (done := len(read_metrics(path))):
        raise StateError(
            f"{path} has {done} updates, but {run_dir / 'checkpoints'} has no checkpoint to go on from; restore it, or "
            "start a new run"
        )
    return checkpoint


def forget(run_dir: Path, *, made: bool) -> None:
    """Removes the folder of a run without a checkpoint if the run has `made` it, else only the settings in it."""
    if latest_checkpoint(run_dir / "checkpoints") is None:
        shutil.rmtree(run_dir) if made else (run_dir / "config.json").unlink(missing_ok=True)


def free_folder(name: Path) -> Path:
    numbered = (name.with_name(f"{name.name}-{n}") for n in itertools.count(2))
    return next(folder for folder in itertools.chain([name], numbered) if not (folder / "config.json").exists())
