"""The episode log: JSON Lines files that show what the agent did in each turn, and what was trained on.

The log of a run has one file per update. The log of an evaluation is one file, to which each episode is appended.

The log has numbers of tokens instead of token ids. They give the mask: an episode begins with the tokens of its prompt,
and each turn adds those of its action, including the thought, and of its observation. The model wrote only the actions.
If an agent program changes the history, that turn begins another sequence, with ``prompt_tokens`` that the model did
not write. A later turn may continue an earlier sequence.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eh_gym.errors import StateError
from harness.records.files import room_for, whole_file, write_whole
from harness.types.trajectory import Trajectory, Turn

_SYSTEM_PROMPTS = "system-prompts"
_NEEDED = {"task_id", "horizon", "length", "success", "end", "turns"}
_LOGGED = (
    *("task_id", "group", "seed", "horizon", "length", "reward", "success", "end", "error", "failure", "optimal_steps"),
    *("tokens", "action_tokens", "prompt_tokens", "prompt", "kinds"),
)
_ESCAPED = "backslashreplace"  # an environment may send half a surrogate pair, which UTF-8 can't hold


def write_episodes(
    folder: Path, update: int, trajectories: Sequence[Trajectory], chosen: Sequence[tuple[Trajectory, float]] = ()
) -> Path:
    """Writes ``update-000012.jsonl`` and returns its path. The file is written completely or not at all.

    A line has what `Trajectory` and `Turn` call so. If the environment or the agent itself failed, ``fault`` says how.
    ``system_prompt`` and ``tools`` name files under ``system-prompts/``, because thousands of episodes share one.
    ``advantage`` is null if the episode is not in the loss; `chosen` are those that are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = {t.system_prompt: _write_shared_texts(folder, t) for t in trajectories}
    advantages = {id(t): advantage for t, advantage in chosen}
    path = folder / f"update-{update:06d}.jsonl"
    lines = (episode_line(t, shared[t.system_prompt], update, advantages.get(id(t))) for t in trajectories)
    with whole_file(path) as part, part.open("w", encoding="utf-8", errors=_ESCAPED) as file:
        file.writelines(_as_json(line) + "\n" for line in lines)
    return path


class EpisodeWriter:
    """Appends each episode of an evaluation to a file. A line that a kill cut short is removed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._path = path
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)

    def write(self, trajectory: Trajectory) -> None:
        """Writes one episode, which survives a kill from then on."""
        line = episode_line(trajectory, _write_shared_texts(self._path.parent, trajectory))
        with room_for(self._path), self._path.open("ab") as file:
            file.write(_as_json(line).encode("utf-8", _ESCAPED) + b"\n")


def episode_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("update-*[0-9].jsonl"))


def read_episodes(path: Path) -> list[dict[str, Any]]:
    """Reads the episodes of a file. Drops an unfinished last line. Raises StateError for another bad line."""
    episodes: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            episodes.append(json.loads(line))
            if missing := _NEEDED - episodes[-1].keys():
                raise ValueError(f"it has no {', '.join(sorted(missing))}")
        except (ValueError, AttributeError) as error:
            raise StateError(
                f"line {number} of {path} is not an episode ({error!r:.200}); restore or remove the file"
            ) from error
    return episodes


def read_system_prompt(folder: Path, name: str) -> str | None:
    path = folder / _SYSTEM_PROMPTS / f"{name}.txt"
    return path.read_bytes().decode("utf-8", "replace") if name.isalnum() and path.is_file() else None


def _as_json(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, default=str, skipkeys=True)


def _write_shared_texts(folder: Path, t: Trajectory) -> dict[str, str]:
    names = {"system_prompt": _write_shared(folder, t.system_prompt, ".txt")}
    if t.tools:
        names["tools"] = _write_shared(folder, json.dumps(t.tools, ensure_ascii=False), ".json")
    return names


def _write_shared(folder: Path, text: str, ending: str) -> str:
    data = text.encode("utf-8", _ESCAPED)
    name = hashlib.sha256(data).hexdigest()[:16]
    path = folder / _SYSTEM_PROMPTS / f"{name}{ending}"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_whole(path, data)
    return name


def episode_line(
    t: Trajectory, shared: Mapping[str, str], update: int | None = None, advantage: float | None = None
) -> dict[str, Any]:
    """The line of an episode in the log. `shared` are the fields that `_write_shared_texts` returns."""
    return {
        "update": update,
        **{name: getattr(t, name) for name in _LOGGED},
        **{name: text for name in ("fault", "trace", "unscored") if (text := getattr(t, name))},
        "advantage": advantage,
        "versions": sorted(set(t.versions)),
        **({} if t.threshold is None else {"threshold": t.threshold}),
        **shared,
        "turns": [_turn(turn, timed=update is None) for turn in t.turns],
    }


def _turn(turn: Turn, *, timed: bool) -> dict[str, Any]:
    """A turn's fields. The log of a run has no latencies: it is the same in every run with the same seed."""
    fields = {name: value for name, value in vars(turn).items() if value or name not in ("results", "new_tools")}
    return fields if timed else {name: value for name, value in fields.items() if name != "latency_s"}
