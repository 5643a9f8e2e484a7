"""The folder of an evaluation: its settings, every episode as soon as it ends, and finally the result.

If the command is stopped, the same command continues. A command that asks for more tasks or rollouts plays only the
missing episodes, which their seeds identify.
"""

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from harness.evaluation.requests import episode_seed
from harness.records.episode_log import EpisodeWriter, read_episodes
from harness.records.files import lock_folder, read_object, room_for, write_whole
from harness.types.request import EpisodeRequest
from harness.types.trajectory import Trajectory

_SETTINGS, _RESULT, _EPISODES = "settings.json", "result.json", Path("episodes", "evaluation.jsonl")
_REPLIES = "replies.jsonl"


class Replies:
    """What a hosted model has replied, in a file, by digests of the requests. So no call is paid twice.

    Replies in the episodes with the seeds `ended` are forgotten.
    """

    def __init__(self, path: Path, ended: Collection[int]) -> None:
        kept: list[dict[str, Any]] = []
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            with contextlib.suppress(ValueError):  # a kill or a full disk may cut a line
                kept.append(json.loads(line))
        kept = [line for line in kept if line["episode"] not in ended]
        self.known: dict[str, str] = {line["request"]: line["reply"] for line in kept}
        write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._path = path

    def add(self, episode: int, request: str, reply: str) -> None:
        """Writes a reply, which survives a kill from then on."""
        with room_for(self._path), self._path.open("a") as file:
            file.write(json.dumps({"episode": episode, "request": request, "reply": reply}) + "\n")


class EvaluationFolder:
    """Keeps one evaluation. It locks the folder until it is closed.

    The folder is new, or has an evaluation with the same settings: all that an episode depends on besides its task and
    seed, as JSON. Else this raises a ConfigError.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        wanted = json.loads(json.dumps(settings, default=str))
        new = not (folder / _SETTINGS).exists()
        left = {".lock", f"{_SETTINGS}.part"}  # by an evaluation that was killed before its settings were written
        if new and folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - left):
            raise ConfigError(f"{folder} exists and holds no evaluation; give --out a new folder")
        with contextlib.ExitStack() as opened:
            opened.enter_context(
                lock_folder(folder, f"another process evaluates in {folder}; wait for it, or give --out a new folder")
            )
            if not new and not _begun(folder, wanted):
                (folder / _EPISODES).unlink(missing_ok=True)
                new = True
            if new:
                write_whole(folder / _SETTINGS, json.dumps(wanted, indent=2))
            self._writer = EpisodeWriter(folder / _EPISODES)
            # Episodes whose environment failed are played again.
            played = read_episodes(folder / _EPISODES)
            self._played = {line["seed"] for line in played if line["end"] != "environment-error"}
            self._opened = opened.pop_all()

    def missing(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRequest]:
        return [request for request in requests if request.seed not in self._played]

    def lines(self, requests: Sequence[EpisodeRequest]) -> list[dict[str, Any]]:
        last = {line["seed"]: line for line in read_episodes(self._folder / _EPISODES)}
        return [last[request.seed] for request in requests if request.seed in last]

    def add(self, trajectory: Trajectory) -> None:
        """Writes an episode, which survives a kill from then on. Removes a result that does not count it."""
        (self._folder / _RESULT).unlink(missing_ok=True)
        self._writer.write(trajectory)

    def replies(self) -> Replies:
        return Replies(self._folder / _REPLIES, self._played)

    def end(self, result: Mapping[str, Any]) -> None:
        write_whole(self._folder / _RESULT, json.dumps(result, default=str, indent=2))
        if not result["result"]["environment_errors"]:
            (self._folder / _REPLIES).unlink(missing_ok=True)

    def close(self) -> None:
        self._opened.close()


@dataclass(frozen=True)
class KeptEvaluation:
    """An evaluation as its folder has it. The `result` is None before the end, and `episodes` a file.

    The `settings` are those of `harness.evaluate`, with the name of the split.
    """

    folder: Path
    settings: Mapping[str, Any]
    result: Mapping[str, Any] | None
    episodes: Path

    @property
    def title(self) -> str:
        get = self.settings.get
        return f"{get('model') or get('policy')} on {get('env')}, {get('split')}"

    @property
    def environment_args(self) -> dict[str, Any]:
        return {"split": self.settings["split"], **self.settings["env_args"]}

    def first_of_each_task(self) -> list[dict[str, Any]]:
        seed, lines = self.settings["seed"], {}
        for line in read_episodes(self.episodes):
            # After a stop, an episode whose environment failed is played again. Its second line counts.
            if line["end"] != "environment-error" and line["seed"] == episode_seed(seed, line["task_id"], 0):
                lines[line["seed"]] = line
        if not lines:
            raise ConfigError(
                f"{self.folder} has no episode that ended; run the same command of harness.evaluate again"
            )
        return list(lines.values())


def is_evaluation(folder: Path) -> bool:
    return (folder / _SETTINGS).is_file() and (folder / _EPISODES).is_file()


def evaluations_in(folder: Path) -> list[Path]:
    """Returns the evaluations of a folder: its own, and those in its subfolders.

    A run, a sweep or a folder of runs stands for its runs, so the evaluations in its subfolders are left out.
    """
    of_runs = any(any(folder.glob(name)) for name in ("config.json", "*/config.json", "suites"))
    return [path for path in [folder, *([] if of_runs else sorted(folder.glob("*/")))] if is_evaluation(path)]


def evaluation_of(folder: Path, env: str) -> KeptEvaluation:
    """Reads an evaluation. Raises ConfigError unless it is of `env`, an environment's name without its version."""
    if not is_evaluation(folder):
        raise ConfigError(f"{folder} holds no evaluation; give the --out folder of harness.evaluate")
    kept = read_evaluation(folder)
    env_id = str(kept.settings["env"])
    if env_id.removeprefix("eh_gym:").rsplit("-v", 1)[0] != env:
        raise ConfigError(f"{folder} has episodes of {env_id}, and this export is for {env}")
    return kept


def read_evaluation(folder: Path) -> KeptEvaluation:
    settings, ended = read_object(folder / _SETTINGS), folder / _RESULT
    return KeptEvaluation(
        folder, settings, read_object(ended)["result"] if ended.exists() else None, folder / _EPISODES
    )


def _begun(folder: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether a step was played. If not, as with an agent that can't be imported, nothing is kept. Raises ConfigError
    if one was played with other settings.
    """
    begun = (folder / _EPISODES).exists() and any(line["length"] for line in read_episodes(folder / _EPISODES))
    kept = read_object(folder / _SETTINGS)
    differing = [name for name in wanted if kept.get(name) != wanted[name]]
    if differing and begun:
        words = ", ".join(f"{name} {kept.get(name)!r} (here {wanted[name]!r})" for name in differing)
        raise ConfigError(f"{folder} holds an evaluation with {words}; give --out a new folder, or the same settings")
    return begun
