"""Writes the page on which the logged episodes can be read, turn by turn: one HTML file for any number of episodes.

The page holds the episodes' texts in compressed parts. The browser inflates a part when one of its episodes is opened or
searched. What the list shows of all episodes is a small part of its own. Texts of models and environments are data on the page,
never markup. The evaluations within a training run are not on it, because their episodes are not logged.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eh_gym.errors import ConfigError
from harness.evaluation.folder import KeptEvaluation
from harness.experiments.report.page import environment
from harness.experiments.report.runs import Suite, all_runs
from harness.run.episode_log import read_episodes, read_system_prompt
from harness.run.files import write_whole

__all__ = ["Episodes", "Log", "write_trajectories"]

# The most that a part holds before compression. A longer episode gets its own part.
_PART_EPISODES, _PART_CHARACTERS = 64, 1_000_000

_SHOWN = ("update", "group", "horizon", "length", "reward", "success", "end", "tokens", "action_tokens", "advantage")


class Log(NamedTuple):
    """The episode log of a run or an evaluation, and its names on the page."""

    name: str
    arm: str
    seed: int
    env: str
    files: Sequence[Path]


def episode_logs(suites: Sequence[Suite], evaluations: Sequence[KeptEvaluation]) -> list[Log]:
    """Lists the episode logs: those of the runs, then those of the evaluations."""
    logs = [Log(run.folder.name, arm.label, run.seed, suite.env, run.episodes) for suite, arm, run in all_runs(suites)]
    for kept in evaluations:
        get = kept.settings.get
        arm = f"{get('model') or get('policy')}, {get('split')}, K = {get('horizon')}"
        logs.append(Log(kept.folder.name, arm, int(get("seed", 0)), str(get("env")), [kept.episodes]))
    return logs


class Episodes(NamedTuple):
    """The number of episodes on a page, and the number that was logged."""

    shown: int
    logged: int


@dataclass
class _Index:
    """What the list shows of all episodes, by column; and the sizes of the parts with the texts."""

    runs: list[dict[str, Any]]
    tasks: dict[str, int] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in ("run", "position", "task", "in_loss", *_SHOWN)}
    )
    parts: list[int] = field(default_factory=list)  # the number of episodes of each part
    system_prompts: dict[str, Path] = field(default_factory=dict)  # the folder of its log, by name

    def add(self, run: int, position: int, episode: Mapping[str, Any]) -> None:
        """Appends one episode."""
        values = {name: episode.get(name) for name in _SHOWN}
        values |= {"run": run, "position": position}
        # Older versions logged no advantage. Then it is not known whether the episode was in the loss.
        values["in_loss"] = episode["advantage"] is not None if "advantage" in episode else None
        values["task"] = self.tasks.setdefault(str(episode["task_id"]), len(self.tasks))
        if values["update"] is None:  # of an evaluation: its log counts the tasks of each command from 0
            values |= {"update": -1, "group": values["task"]}
        for name, column in self.columns.items():
            column.append(values[name])

    def packed(self) -> str:
        """Returns the index as the page's script reads it."""
        return _packed({"runs": self.runs, "tasks": list(self.tasks), "columns": self.columns, "parts": self.parts})


def write_trajectories(logs: Sequence[Log], out: Path, *, report: str, most_episodes: int) -> Episodes:
    """Writes the page, completely or not at all. Writes none if no episode is logged.

    Args:
        logs: The logs, in the order of the page's filter.
        out: The page.
        report: The name of the report in the same folder, for a link back.
        most_episodes: The approximate number of episodes to keep, >= 1. If more are logged, whole updates of every run are
            skipped, evenly. The last logged update of a run stays, and an evaluation stays complete.

    Raises:
        ConfigError: `most_episodes` is below 1.
        StateError: An episode log is damaged.
    """
    if most_episodes < 1:
        raise ConfigError(f"the most episodes must be >= 1, got {most_episodes}")
    files = [log.files for log in logs]
    logged = sum(_lines(path) for paths in files for path in paths)
    if not logged:
        return Episodes(0, 0)
    kept = [_evenly(paths, min(1.0, most_episodes / logged)) for paths in files]
    index = _Index([{"name": log.name, "arm": log.arm, "seed": log.seed, "env": log.env} for log in logs])
    parts = list(_parts(kept, index))
    page = environment().get_template("trajectories.html.jinja")
    text = page.render(
        report=report, parts=parts, index=index.packed(), system_prompts=_system_prompts(index), logged=logged
    )
    write_whole(out, text)
    return Episodes(len(index.columns["run"]), logged)


def _parts(kept: Sequence[Sequence[Path]], index: _Index) -> Iterator[str]:
    """Yields the parts with the texts. Each is read when it is needed, and its episodes are then added to the index."""
    for run, paths in enumerate(kept):
        for path in paths:
            part: list[dict[str, Any]] = []
            characters = 0
            for position, episode in enumerate(read_episodes(path)):
                size = len(episode.get("prompt") or "") + sum(_size(turn) for turn in episode["turns"])
                if part and (len(part) == _PART_EPISODES or characters + size > _PART_CHARACTERS):
                    index.parts.append(len(part))
                    yield _packed(part)
                    part, characters = [], 0
                index.add(run, position, episode)
                if name := episode.get("system_prompt"):
                    index.system_prompts.setdefault(str(name), path.parent)
                part.append({name: value for name, value in episode.items() if name not in index.columns})
                characters += size
            if part:
                index.parts.append(len(part))
                yield _packed(part)


def _system_prompts(index: _Index) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of every system prompt. The index must be complete."""
    for name, folder in index.system_prompts.items():
        text = read_system_prompt(folder, name)
        if text is not None:
            yield name, _packed(text)


def _evenly(paths: Sequence[Path], share: float) -> list[Path]:
    """Picks a share of the files, spread evenly. It always contains the last one."""
    wanted = min(len(paths), max(1, int(share * len(paths))))
    return [paths[i] for i in np.linspace(len(paths) - 1, 0, wanted).round().astype(int)[::-1]] if paths else []


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _size(turn: Mapping[str, Any]) -> int:
    return len(turn.get("reasoning") or "") + len(turn.get("action") or "") + len(turn.get("observation") or "")


def _packed(value: Any) -> str:
    """Returns compressed JSON, in characters that need no escape in HTML."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # Python writes a reward that is not finite, but no browser reads it: it becomes null
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        text = json.dumps(finite, separators=(",", ":"))
    data = text.encode("ascii")
    return base64.b64encode(gzip.compress(data, mtime=0)).decode("ascii")
