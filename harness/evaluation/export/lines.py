"""Episodes as JSON Lines for other trainers: as conversations, or as token ids with the mask of what the model wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from harness.evaluation.folder import is_evaluation, read_evaluation
from harness.run.episode_log import episode_files, read_episodes, read_system_prompt
from harness.run.files import make_folder, whole_file

__all__ = ["conversation", "tokens_of", "write_lines"]

Line = Mapping[str, Any]
Form = Callable[[Line, str], list[dict[str, Any]]]
"""Makes the lines of the export from an episode's line in the log and its system prompt."""


def write_lines(source: Path, out: Path, form: Form, *, successes_only: bool = False) -> int:
    """Writes the lines of each episode, in the order of the log, and returns the number of episodes.

    Episodes whose environment failed are left out, and so are those in which the model wrote nothing.

    Args:
        source: The folder of an evaluation, or of a run.
        out: The file. It is written completely or not at all.
        form: `conversation` or `tokens_of`.
        successes_only: Whether to leave out the episodes that failed, too.

    Raises:
        ConfigError: The folder has no episodes, or not what the form needs, or the file can't be written.
        StateError: A file in the folder is damaged.
    """
    make_folder(out.parent, "--out")
    if out.is_dir():
        raise ConfigError(f"out must be a file, got the folder {out}; add a name: {out / 'episodes.jsonl'}")
    count = 0
    with whole_file(out) as part, part.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for log in _logs(source):
            for line in read_episodes(log):
                if line["end"] != "environment-error" and line["turns"] and (line["success"] or not successes_only):
                    system = read_system_prompt(log.parent, line["system_prompt"]) or ""
                    file.writelines(json.dumps(made, ensure_ascii=False) + "\n" for made in form(line, system))
                    count += 1
    return count


def conversation(line: Line, system_prompt: str) -> list[dict[str, Any]]:
    """An episode as a conversation, in the format that TRL calls conversational: a list ``messages`` of roles and contents.

    It ends with the model's last message. A thought is in ``reasoning_content``, where chat templates look for it. The other
    columns say which episode it is, and how it ended.
    """
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    said = line["prompt"]
    for turn in line["turns"]:
        messages += [{"role": "user", "content": said}, _assistant(turn)]
        said = turn["observation"]
    return [{"messages": messages, **_about(line)}]


def tokens_of(line: Line, _: str) -> list[dict[str, Any]]:
    """An episode as token ids, with a mask of those that the model sampled, and their log-probabilities when they were sampled.

    It has one line, or with `--reasoning strip` one for each of its sequences.

    Raises:
        ConfigError: The log has no token ids.
    """
    if not line.get("sequences"):
        raise ConfigError(
            f"the episode of {line['task_id']} was logged without token ids; play it with harness.evaluate --keep-tokens, and "
            "with a model on this machine: an endpoint gives no ids"
        )
    return [
        {
            "input_ids": sequence["ids"],
            "action_mask": sequence["action_mask"],
            "logprobs": sequence["logprobs"],
            **_about(line),
        }
        for sequence in line["sequences"]
    ]


def _logs(source: Path) -> Iterator[Path]:
    if is_evaluation(source):
        yield read_evaluation(source).episodes
        return
    files = episode_files(source / "episodes")
    if not files:
        raise ConfigError(f"{source} has no episodes; give the folder of an evaluation (--out) or of a run (--run-dir)")
    yield from files


def _assistant(turn: Line) -> dict[str, str]:
    thought, closed, answer = turn["action"].rpartition("</think>")
    reasoning = turn.get("reasoning") or (thought.removeprefix("<think>").strip() if closed else "")
    message = {"role": "assistant", "content": answer.lstrip("\n") if closed else turn["action"]}
    return message | ({"reasoning_content": reasoning} if reasoning else {})


def _about(line: Line) -> dict[str, Any]:
    return {name: line[name] for name in ("task_id", "seed", "reward", "success", "end", "advantage")}
