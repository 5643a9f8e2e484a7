"""The folder of an evaluation: its settings, every episode as soon as it ends, and finally the result.

If the command is stopped, the same command continues from where it was. A command that asks for more tasks or rollouts plays
only the missing episodes; the seed of an episode identifies it. `harness.records.episode_log` keeps those of a training run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from envs.making import read_env_args
from harness.evaluation.requests import episode_seed
from harness.records.episode_log import EpisodeWriter, read_episodes
from harness.records.files import lock_folder, read_object, write_whole
from harness.types.request import EpisodeRequest
from harness.types.trajectory import Trajectory

__all__ = ["EvaluationFolder", "KeptEvaluation", "evaluation_of", "evaluations_in", "is_evaluation", "read_evaluation"]

_SETTINGS, _RESULT, _EPISODES = "settings.json", "result.json", Path("episodes", "evaluation.jsonl")


class EvaluationFolder:
    """Keeps one evaluation. No other process can keep one in the same folder until this one is closed.

    Args:
        folder: A new folder, or that of an evaluation with the same settings. One in which no step was played may have others.
        settings: Everything that an episode depends on, besides its task and seed. It must be possible to write it as JSON.

    Raises:
        ConfigError: The folder holds something else, is in use, or can't be made.
        StateError: The episodes in it can't be read.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        wanted = json.loads(json.dumps(settings, default=str))
        new = not (folder / _SETTINGS).exists()
        if new and folder.exists() and (not folder.is_dir() or _strangers(folder)):
            raise ConfigError(f"{folder} exists and holds no evaluation; give --out a new folder")
        with contextlib.ExitStack() as opened:
            opened.enter_context(
                lock_folder(folder, f"another process evaluates in {folder}; wait for it, or give --out a new folder")
            )
            if not new and _differs(folder, wanted):
                (folder / _EPISODES).unlink(missing_ok=True)
                new = True
            if new:
                write_whole(folder / _SETTINGS, json.dumps(wanted, indent=2))
            self._writer = opened.enter_context(contextlib.closing(EpisodeWriter(folder / _EPISODES)))
            # If the environment of an episode failed, the episode is played again.
            played = read_episodes(folder / _EPISODES)
            self._played = {line["seed"] for line in played if line["end"] != "environment-error"}
            self._opened = opened.pop_all()

    def missing(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRequest]:
        """Returns the requests whose episodes were not played yet, in their order."""
        return [request for request in requests if request.seed not in self._played]

    def lines(self, requests: Sequence[EpisodeRequest]) -> list[dict[str, Any]]:
        """Returns the episodes of the requests as the file has them now, in the order of the requests."""
        last = {line["seed"]: line for line in read_episodes(self._folder / _EPISODES)}
        return [last[request.seed] for request in requests if request.seed in last]

    def add(self, trajectory: Trajectory) -> None:
        """Writes an episode. If the process is killed after this, the episode is not lost. A result without it is removed."""
        (self._folder / _RESULT).unlink(missing_ok=True)
        self._writer.write(trajectory)

    def end(self, result: Mapping[str, Any]) -> None:
        """Writes the result next to the settings."""
        write_whole(self._folder / _RESULT, json.dumps(result, default=str, indent=2))

    def close(self) -> None:
        """Closes the episodes' file and frees the folder."""
        self._opened.close()


@dataclass(frozen=True)
class KeptEvaluation:
    """An evaluation as its folder has it, finished or not.

    Attributes:
        folder: The folder.
        settings: The settings of `harness.evaluate`, with the name of the split.
        result: The fields of `EvalResult`; None before the end.
        episodes: The file of the episodes.
    """

    folder: Path
    settings: Mapping[str, Any]
    result: Mapping[str, Any] | None
    episodes: Path

    @property
    def environment_args(self) -> dict[str, Any]:
        """The arguments of ``gym.make`` that the evaluation was run with."""
        return {"split": self.settings["split"], **read_env_args(self.settings["env_args"])}

    def first_of_each_task(self) -> list[dict[str, Any]]:
        """Returns the line of the first episode of every task that has one. Episodes whose environment failed are left out.

        Raises:
            ConfigError: There is none.
            StateError: The log is damaged.
        """
        seed, lines = self.settings["seed"], {}
        for line in read_episodes(self.episodes):
            # An episode whose environment had failed is played again after a stop, and its second line counts.
            if line["end"] != "environment-error" and line["seed"] == episode_seed(seed, line["task_id"], 0):
                lines[line["seed"]] = line
        if not lines:
            raise ConfigError(
                f"{self.folder} has no episode that ended; run the same command of harness.evaluate again"
            )
        return list(lines.values())


def _strangers(folder: Path) -> list[Path]:
    """What a folder holds that an evaluation does not leave there when it is killed before its settings are written."""
    return [path for path in folder.iterdir() if path.name not in (".lock", f"{_SETTINGS}.part")]


def is_evaluation(folder: Path) -> bool:
    """Whether an evaluation was begun in this folder."""
    return (folder / _SETTINGS).is_file() and (folder / _EPISODES).is_file()


def evaluations_in(folder: Path) -> list[Path]:
    """Returns the evaluations that a folder stands for: its own, and those in its folders.

    A run, a sweep or a folder of runs stands for its runs, also if an evaluation is kept in it.
    """
    of_runs = any(any(folder.glob(name)) for name in ("config.json", "*/config.json", "suites"))
    return [path for path in [folder, *([] if of_runs else sorted(folder.glob("*/")))] if is_evaluation(path)]


def evaluation_of(folder: Path, env: str) -> KeptEvaluation:
    """Reads an evaluation of one environment, which is named without its version.

    Raises:
        ConfigError: The folder holds no evaluation of it.
        StateError: A file in it is damaged.
    """
    if not is_evaluation(folder):
        raise ConfigError(f"{folder} holds no evaluation; give the --out folder of harness.evaluate")
    kept = read_evaluation(folder)
    found = str(kept.settings["env"])
    if found.removeprefix("eh_gym:").rsplit("-v", 1)[0] != env:
        raise ConfigError(f"{folder} has episodes of {found}, and this export is for {env}")
    return kept


def read_evaluation(folder: Path) -> KeptEvaluation:
    """Reads an evaluation's folder.

    Raises:
        StateError: A file is damaged.
    """
    settings, ended = read_object(folder / _SETTINGS), folder / _RESULT
    return KeptEvaluation(
        folder, settings, read_object(ended)["result"] if ended.exists() else None, folder / _EPISODES
    )


def _differs(folder: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the folder has other settings, under which no step was played. If one was, they can't be replaced: ConfigError."""
    kept = read_object(folder / _SETTINGS)
    differ = {name: kept.get(name) for name in wanted if kept.get(name) != wanted[name]}
    if differ and (folder / _EPISODES).exists() and any(line["length"] for line in read_episodes(folder / _EPISODES)):
        words = ", ".join(f"{name} {value!r} (here {wanted[name]!r})" for name, value in differ.items())
        raise ConfigError(f"{folder} holds an evaluation with {words}; give --out a new folder, or the same settings")
    return bool(differ)
