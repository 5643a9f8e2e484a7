"""Episodes as JSON Lines for other trainers: as conversations, or as token ids with the mask of what the model wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from harness.evaluation.folder import is_evaluation, read_evaluation
from harness.run.episode_log import episode_files, read_episodes, read_system_prompt, read_tools
from harness.run.files import make_folder, whole_file

__all__ = ["conversation", "tokens_of", "write_lines"]

Line = Mapping[str, Any]
Form = Callable[[Line, str, Sequence[Any]], list[dict[str, Any]]]
"""Makes the lines of the export from an episode's line in the log, its system prompt, and the functions on offer."""


def write_lines(source: Path, out: Path, form: Form, *, successes_only: bool = False) -> int:
    """Writes the lines of each episode, in the order of the log, and returns the number of episodes.

    Episodes whose environment failed are not written, nor are those in which the model wrote nothing.

    Args:
        source: The folder of an evaluation, or of a run.
        out: The file. It is written completely or not at all.
        form: `conversation` or `tokens_of`.
        successes_only: Whether to write only the successes.

    Raises:
        ConfigError: The folder has no episodes, or not what the form needs, or the file can't be written.
        StateError: A file in the folder is damaged.
    """
    make_folder(out.parent, "--out")
    if out.is_dir():
        raise ConfigError(f"out must be a file, got the folder {out}; add a name: {out / 'episodes.jsonl'}")
    if _loses(source, out):
        raise ConfigError(f"{out} is a file of {source}, which the export would write over; give another --out")
    count = 0
    with whole_file(out) as part, part.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for log in _logs(source):
            for line in read_episodes(log):
                if line["end"] != "environment-error" and line["turns"] and (line["success"] or not successes_only):
                    tools = read_tools(log.parent, line)
                    # The log has the functions below the system prompt.
                    shown = "".join(f"\n{_json(tool)}" for tool in tools)
                    system = (read_system_prompt(log.parent, line["system_prompt"]) or "").removesuffix(shown)
                    file.writelines(_json(made) + "\n" for made in form(line, system, tools))
                    count += 1
    return count


def conversation(line: Line, system_prompt: str, tools: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """An episode as a conversation, in the format that TRL calls conversational: a list ``messages`` of roles and contents.

    It ends with the model's last message. A thought is in ``reasoning_content``, where chat templates look for it. Calls in the
    model's own form are in ``tool_calls``, and each result is a message with the role tool. ``tools`` has the functions that
    were on offer from the start, as JSON text: TRL accepts it, and a data set's schema can't mix up the functions. Functions
    that were offered later are in the user's message. The other columns say which episode it is, and how it ended.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    heard: list[dict[str, Any]] = [{"role": "user", "content": line["prompt"]}]
    for turn in line["turns"]:
        said = _assistant(turn, native=bool(tools))
        messages += [*heard, said]
        heard = _answer(turn, said)
    columns = {"messages": messages, **_about(line)}
    return [columns | ({"tools": _json(list(tools))} if tools else {})]


def tokens_of(line: Line, _: str, __: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """An episode as token ids, with a mask of those that the model sampled, and their log-probabilities when they were sampled.

    It has one line for each of its sequences: several if an agent program has changed its history.

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


def _loses(source: Path, out: Path) -> bool:
    """Whether `out` is a file of the folder `source` that no export has written."""
    if not out.exists() or source.resolve() not in out.resolve().parents:
        return False
    with out.open("rb") as file:
        begin = file.read(12)
    return begin != b"" and not begin.startswith((b'{"messages"', b'{"input_ids"'))


def _logs(source: Path) -> Iterator[Path]:
    if is_evaluation(source):
        yield read_evaluation(source).episodes
        return
    files = episode_files(source / "episodes")
    if not files:
        raise ConfigError(f"{source} has no episodes; give the --out folder of an evaluation or of a run")
    yield from files


def _assistant(turn: Line, *, native: bool) -> dict[str, Any]:
    spoken = _spoken(turn["action"]) if native else {"content": turn["action"]}
    thought, closed, answer = spoken["content"].rpartition("</think>")
    reasoning = turn.get("reasoning") or (thought.removeprefix("<think>").strip() if closed else "")
    message = {"role": "assistant", **spoken, "content": answer.lstrip("\n") if closed else spoken["content"]}
    return message | ({"reasoning_content": reasoning} if reasoning else {})


def _spoken(action: str) -> dict[str, Any]:
    """The content and the calls of an action in the native format. Every call has an id, and its arguments as an object."""
    try:
        message = json.loads(action)
        if not message.keys() & {"content", "tool_calls"}:
            return {"content": action}
        calls = [(call.get("id"), call["function"]) for call in message.get("tool_calls") or []]
        made = [
            {
                "id": given or f"call{at:05d}",  # Mistral's templates want nine letters or digits
                "type": "function",
                "function": {"name": function["name"], "arguments": _object(function["arguments"])},
            }
            for at, (given, function) in enumerate(calls)
        ]
        return {"content": message.get("content") or ""} | ({"tool_calls": made} if made else {})
    except (ValueError, TypeError, KeyError, AttributeError):
        return {"content": action}


def _object(arguments: Any) -> Any:
    """The arguments of a call as an object. An endpoint gives JSON text; other text stays as it is."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _answer(turn: Line, said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answer to a turn: the result of each call, or the user's message."""
    if results := turn.get("results"):
        return [
            {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": result}
            for call, result in zip(said["tool_calls"], results, strict=True)
        ]
    # A model on this machine reads about new functions in the user's message. An endpoint gets them separately.
    functions = [_json(tool["function"]) for tool in turn.get("new_tools", ())]
    missing = [function for function in functions if function not in turn["observation"]]
    return [{"role": "user", "content": "\n".join([*missing, turn["observation"]])}]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _about(line: Line) -> dict[str, Any]:
    return {name: line[name] for name in ("task_id", "seed", "reward", "success", "end", "advantage")}
