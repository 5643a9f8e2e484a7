"""AppWorld's experiment outputs of an evaluation, for ``appworld evaluate`` and ``appworld pack``."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eh_gym.errors import ConfigError
from envs.appworld.data import task_ids
from envs.appworld.hosts import Settings
from envs.appworld.outputs import output_writer
from harness.evaluation.folder import evaluation_of

_NAME = re.compile(r"[a-z0-9_-]+")  # a rule of appworld pack


@dataclass(frozen=True)
class AppWorldOutputs:
    """The result of the export.

    Attributes:
        missing: The split's tasks without an episode. ``appworld evaluate`` needs all of them.
        differing: The tasks whose verdict differed when their code ran again.
        solved_but_stopped: The tasks that were solved but not completed before the episode was stopped. They count as
            failures here. AppWorld's evaluation counts the state that they leave.
    """

    experiment: str
    split: str
    tasks: int
    missing: int
    differing: tuple[str, ...]
    solved_but_stopped: tuple[str, ...]


def write_appworld_outputs(
    source: Path,
    out: Path,
    *,
    name: str = "",
    on_task: Callable[[int, int], None] = lambda done, of: None,
) -> AppWorldOutputs:
    """Writes ``OUT/experiments/outputs/NAME_SPLIT/tasks/...`` from the folder of an evaluation.

    `out` is the folder that AppWorld calls its root.
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
    for number, line in enumerate(lines, start=1):
        again = writer.write(line["task_id"], [turn["action"] for turn in line["turns"]])
        if (again.success and again.completed) != line["success"]:
            differing.append(line["task_id"])
        if again.success and not again.completed:
            stopped.append(line["task_id"])
        on_task(number, len(lines))
    missing = len(task_ids(split)) - len(lines)
    return AppWorldOutputs(experiment, split, len(lines), missing, tuple(differing), tuple(stopped))
