"""The page on which the logged episodes are read, turn by turn: one HTML file that any number of episodes fit into.

The episodes' texts lie in the page as compressed parts that the browser inflates one at a time, when one of their
episodes is opened or searched; what the list shows of every episode is one small part of its own. Texts of models and
environments are data there, never markup. Left out: the evaluations within a training run, whose episodes it does not log.
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

# What a part holds at most, before compression; an episode that is longer has a part of its own.
_PART_EPISODES, _PART_CHARACTERS = 64, 1_000_000

_SHOWN = ("update", "group", "horizon", "length", "reward", "success", "end", "tokens", "action_tokens", "advantage")


class Log(NamedTuple):
    """The episode log of a run or an evaluation, and what the page calls it."""

    name: str
    arm: str
    seed: int
    env: str
    files: Sequence[Path]


def episode_logs(suites: Sequence[Suite], evaluations: Sequence[KeptEvaluation]) -> list[Log]:
    """Lists the episode logs that there are to read: those of the runs, then those of the evaluations."""
    logs = [Log(run.folder.name, arm.label, run.seed, suite.env, run.episodes) for suite, arm, run in all_runs(suites)]
    for kept in evaluations:
        get = kept.settings.get
        arm = f"{get('model') or get('policy')}, {get('split')}, K = {get('horizon')}"
        logs.append(Log(kept.folder.name, arm, int(get("seed", 0)), str(get("env")), [kept.episodes]))
    return logs


class Episodes(NamedTuple):
    """How many episodes a page has, and how many the runs have logged."""

    shown: int
    logged: int


@dataclass
class _Index:
    """What the list shows of every episode, by column; and in how many parts the texts are."""

    runs: list[dict[str, Any]]
    tasks: dict[str, int] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in ("run", "position", "task", "in_loss", *_SHOWN)}
    )
    parts: list[int] = field(default_factory=list)  # each one's number of episodes
    system_prompts: dict[str, Path] = field(default_factory=dict)  # by name the log that it is in

    def add(self, run: int, position: int, episode: Mapping[str, Any]) -> None:
        """Appends one episode."""
        values = {name: episode.get(name) for name in _SHOWN}
        values |= {"run": run, "position": position}
        values["update"] = -1 if values["update"] is None else values["update"]  # of an evaluation
        # Runs of older versions logged no advantage; then it is not known whether the episode was in the loss.
        values["in_loss"] = episode["advantage"] is not None if "advantage" in episode else None
        values["task"] = self.tasks.setdefault(str(episode["task_id"]), len(self.tasks))
        for name, column in self.columns.items():
            column.append(values[name])

    def packed(self) -> str:
        """For the page's script."""
        return _packed({"runs": self.runs, "tasks": list(self.tasks), "columns": self.columns, "parts": self.parts})


def write_trajectories(logs: Sequence[Log], out: Path, *, report: str, most_episodes: int) -> Episodes:
    """Writes the page, whole or not at all; none where no episode is logged.

    Args:
        logs: In the order of the page's filter.
        out: The page.
        report: The name of the report beside it, for a link back.
        most_episodes: Of all logs together, about, >= 1: where more are logged, whole updates are left out, evenly over
            every run, and its last logged update stays; an evaluation stays whole.

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
    """The texts part by part, each read when it is asked for; the index grows with them."""
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
    """The name and text of every system prompt, once the index has them all."""
    for name, folder in index.system_prompts.items():
        text = read_system_prompt(folder, name)
        if text is not None:
            yield name, _packed(text)


def _evenly(paths: Sequence[Path], share: float) -> list[Path]:
    """A share of the files, evenly over them, at least the last."""
    wanted = min(len(paths), max(1, int(share * len(paths))))
    return [paths[i] for i in np.linspace(len(paths) - 1, 0, wanted).round().astype(int)[::-1]] if paths else []


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _size(turn: Mapping[str, Any]) -> int:
    return len(turn.get("action") or "") + len(turn.get("observation") or "")


def _packed(value: Any) -> str:
    """JSON, compressed, in characters that need no escape in HTML."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a reward that is not finite, which Python writes and no browser reads, is not known
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        text = json.dumps(finite, separators=(",", ":"))
    data = text.encode("ascii")
    return base64.b64encode(gzip.compress(data, mtime=0)).decode("ascii")
