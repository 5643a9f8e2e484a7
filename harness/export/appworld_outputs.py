"""AppWorld's experiment outputs of an evaluation, for ``appworld evaluate`` and ``appworld pack``."""

import re
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.progress import track

from eh_gym.errors import ConfigError
from envs.appworld.data import task_ids
from envs.appworld.hosts import Settings
from envs.appworld.outputs import output_writer
from harness.evaluation.folder import evaluation_of

_NAME = re.compile(r"[a-z0-9_-]+")  # a rule of appworld pack


def write_appworld_outputs(source: Path, out: Path, console: Console, *, name: str = "") -> list[str]:
    """Writes ``OUT/experiments/outputs/NAME_SPLIT/tasks/...`` from the folder of an evaluation: each episode's code
    runs again. `out` is the folder that AppWorld calls its root, and `console` shows the progress.

    Returns what there is to say: how many tasks there are, which of them differ, and the command that scores them, for
    which no task of the split may be missing.
    """
    name = name or "elastic-horizon"
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name must have lower-case letters, digits, hyphens and underscores only, got {name!r}; AppWorld demands "
            "it"
        )
    kept = evaluation_of(source, "EH-AppWorld")
    args = kept.environment_args
    split = args["split"]
    names = ("step_timeout_s", "max_observation_chars", "max_api_calls", "memory_mb", "confined")
    settings = Settings(**{setting: args[setting] for setting in names if setting in args})
    lines = kept.first_of_each_task()
    experiment = f"{name}_{split}"
    differing, stopped = [], []
    writer = output_writer(out, experiment, split, settings)
    for line in track(lines, "tasks", console=console, transient=True):
        again = writer.write(line["task_id"], [turn["action"] for turn in line["turns"]])
        if (again.success and again.completed) != line["success"]:
            differing.append(line["task_id"])
        if again.success and not again.completed:  # a failure here; AppWorld's evaluation counts the state alone
            stopped.append(line["task_id"])
    missing = len(task_ids(split)) - len(lines)
    said = [f"{out}: {len(lines)} tasks" + (f", {missing} missing" if missing else "")]
    for tasks, why in (
        (differing, "got another verdict when their code ran again"),
        (stopped, "were solved but not completed, which AppWorld's evaluation counts as solved"),
    ):
        if tasks:
            said.append(f"{len(tasks)} tasks {why}: {', '.join(tasks)}")
    return [*said, f"appworld evaluate {quote(experiment)} {split} --root {quote(str(out.resolve()))}"]
