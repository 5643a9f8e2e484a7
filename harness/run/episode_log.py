"""The episode log: JSON Lines, to read what the agent did, turn by turn, and what was trained on.

A run's log has one file per update, an evaluation's one file that grows by an episode at a time.

Left out: token ids. The numbers of tokens give the mask: an episode is its prompt's, then by turn the action's and the
observation's, and the model wrote the actions' alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eh_gym.errors import StateError
from harness.run.files import whole_file, write_whole
from harness.types.trajectory import Trajectory

__all__ = ["EpisodeWriter", "episode_files", "read_episodes", "read_system_prompt", "write_episodes"]

_SYSTEM_PROMPTS = "system-prompts"
_ESCAPED = "backslashreplace"  # an environment may send half a surrogate pair, which UTF-8 can't hold but JSON can


def write_episodes(
    folder: Path, update: int, trajectories: Sequence[Trajectory], chosen: Sequence[tuple[Trajectory, float]] = ()
) -> Path:
    """Writes ``update-000012.jsonl``, whole or not at all, and returns its path.

    A line has the task, group, seed, K, reward, success, end reason, and ``turns`` of action, observation, their numbers of
    tokens, cut and malformed. Its ``system_prompt`` names a file under ``system-prompts/``, since thousands of episodes
    share one. Its ``advantage`` is null where the episode is not in the loss.

    Args:
        folder: The run's ``episodes``.
        update: Its index.
        trajectories: The update's episodes.
        chosen: Those of them that are in the loss, with their advantages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {text: _write_system_prompt(folder, text) for text in {t.system_prompt for t in trajectories}}
    advantages = {id(t): advantage for t, advantage in chosen}
    path = folder / f"update-{update:06d}.jsonl"
    lines = (_line(update, t, advantages.get(id(t)), names[t.system_prompt]) for t in trajectories)
    with whole_file(path) as part, part.open("w", encoding="utf-8", errors=_ESCAPED) as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return path


class EpisodeWriter:
    """Appends an evaluation's episodes to one file, each as it ends; the lines are those of `write_episodes`, without an update.

    Args:
        path: The file. A last line that a kill left without its end is cut off.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = path.parent
        self._file = path.open("ab")
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)

    def write(self, trajectory: Trajectory) -> None:
        """Writes one episode; no kill of this process loses it any more."""
        line = _line(None, trajectory, None, _write_system_prompt(self._folder, trajectory.system_prompt))
        self._file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", _ESCAPED) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def episode_files(folder: Path) -> list[Path]:
    """The files of an episode log by update, the first one first; none where nothing was logged."""
    return sorted(folder.glob("update-*.jsonl"))


def read_episodes(path: Path) -> list[dict[str, Any]]:
    """The episodes of one file, as they were written; a last line without its end is dropped.

    Raises:
        StateError: Another line is not an episode.
    """
    episodes: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            episode = json.loads(line)
            episode["task_id"], episode["turns"]
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"line {number} of {path} is no episode ({error!r}); restore or remove the file"
            ) from error
        episodes.append(episode)
    return episodes


def read_system_prompt(folder: Path, name: str) -> str | None:
    """The text that an episode's ``system_prompt`` names; None where it is not there."""
    path = folder / _SYSTEM_PROMPTS / f"{name}.txt"
    return path.read_bytes().decode("utf-8", "replace") if name.isalnum() and path.is_file() else None


def _write_system_prompt(folder: Path, text: str) -> str:
    """Writes the text, where it is not there yet, under the name that is returned."""
    data = text.encode("utf-8", _ESCAPED)
    name = hashlib.sha256(data).hexdigest()[:16]
    path = folder / _SYSTEM_PROMPTS / f"{name}.txt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_whole(path, data)
    return name


def _line(update: int | None, t: Trajectory, advantage: float | None, system_prompt: str) -> dict[str, Any]:
    return {
        "update": update,
        "task_id": t.task_id,
        "group": t.group,
        "seed": t.seed,
        "horizon": t.horizon,
        "length": t.length,
        "reward": t.reward,
        "success": t.success,
        "end": t.end,
        "error": t.error,
        "optimal_steps": t.optimal_steps,
        "advantage": advantage,
        "tokens": len(t.ids),
        "action_tokens": t.action_tokens,
        "prompt_tokens": len(t.ids) - sum(turn.action_tokens + turn.observation_tokens for turn in t.turns),
        "versions": sorted(set(t.versions)),
        "system_prompt": system_prompt,
        "prompt": t.prompt,
        "turns": [vars(turn) for turn in t.turns],
    }
