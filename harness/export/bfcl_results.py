"""BFCL's result files, as bfcl-eval would have written them for the model, for ``bfcl evaluate``.

The fields are those of ``BaseHandler.inference_multi_turn_prompting`` of bfcl-eval 2026.3.23, and in the native format
of ``inference_multi_turn_FC``: for each turn, the model's messages with their numbers of tokens and latencies. The
inference log is left out, because the evaluation only copies it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eh_gym.replies import split_reply
from envs.bfcl.backend.calls import FORMATS, DecodeError
from envs.bfcl.splits import CATEGORIES, task_ids
from harness.evaluation.folder import evaluation_of
from harness.records.files import make_folder, write_whole

_NAMES = {"python": "Qwen/Qwen3-8B", "hermes": "Qwen/Qwen3-8B-FC", "native": "openbmb/MiniCPM-SALA-FC"}
"""For each action format, a name in bfcl-eval's list of models whose handler reads that format.

The last one's handler makes a client of OpenAI, which needs a key but sends nothing during evaluation.
"""


@dataclass(frozen=True)
class BFCLResults:
    """The result of the export.

    Attributes:
        needs_key: Whether the name's handler needs ``OPENAI_API_KEY``, with any text.
        missing: The number of BFCL's 800 entries without an episode. If it is not 0, bfcl-eval needs
            ``--partial-eval``.
    """

    folder: Path
    name: str
    needs_key: bool
    entries: int
    missing: int


def write_bfcl_results(source: Path, out: Path, *, name: str = "") -> BFCLResults:
    """Writes ``OUT/NAME/multi_turn/BFCL_v4_multi_turn_CATEGORY_result.json`` for each category that was played."""
    kept = evaluation_of(source, "EH-BFCL")
    action_format = kept.environment_args.get("action_format", "python")
    name = name or _NAMES[action_format]
    entries = {line["task_id"]: result_entry(line, action_format) for line in kept.first_of_each_task()}
    folder = out / name.replace("/", "_") / "multi_turn"
    make_folder(folder, "--out")
    for category in CATEGORIES:
        rows = [json.dumps(entries[id_]) for id_ in task_ids("all", [category]) if id_ in entries]
        if rows:
            write_whole(folder / f"BFCL_v4_multi_turn_{category}_result.json", "\n".join(rows) + "\n")
    return BFCLResults(out, name, name == _NAMES["native"], len(entries), len(task_ids("all")) - len(entries))


def result_entry(line: Mapping[str, Any], action_format: str) -> dict[str, Any]:
    """Returns the entry of one episode.

    An episode that K or the context stopped gets bfcl-eval's text for a failed inference, so that the entry fails
    there, too.
    """
    if line["end"] != "terminated":
        return {"id": line["task_id"], "result": f"Error during inference: the episode was stopped ({line['end']})"}
    turns = _turns(_steps(line, action_format))
    return {
        "id": line["task_id"],
        "result": [[step.message for step in turn] for turn in turns],
        "input_token_count": [[step.input_tokens for step in turn] for turn in turns],
        "output_token_count": [[step.output_tokens for step in turn] for turn in turns],
        "latency": [[step.latency_s for step in turn] for turn in turns],
    }


@dataclass(frozen=True)
class _Step:
    message: str | list[dict[str, str]]
    has_calls: bool
    input_tokens: int
    output_tokens: int
    latency_s: float


def _steps(line: Mapping[str, Any], action_format: str) -> Iterable[_Step]:
    context = line["prompt_tokens"]
    for turn in line["turns"]:
        context = turn.get("prompt_tokens") or context
        # The environment and bfcl-eval's handlers for Qwen leave out a thought in the action.
        message = turn["action"] if action_format == "native" else split_reply(turn["action"])[1]
        yield _Step(
            _message(message) if action_format == "native" else message,
            _has_calls(message, action_format),
            context,
            turn["action_tokens"],
            turn.get("latency_s", 0.0),
        )
        context += turn["action_tokens"] + turn["observation_tokens"]


def _message(action: str) -> str | list[dict[str, str]]:
    try:
        message = json.loads(action)
        calls = [call["function"] for call in message.get("tool_calls") or []]
        return [{call["name"]: _text(call["arguments"])} for call in calls] or str(message.get("content") or "")
    except (ValueError, TypeError, KeyError, AttributeError):
        return action


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _has_calls(action: str, action_format: str) -> bool:
    try:
        return bool(FORMATS[action_format](action))
    except DecodeError:
        return False


def _turns(steps: Iterable[_Step]) -> list[list[_Step]]:
    """The steps of each turn. A message without a call ends a turn; so may the limit of steps."""
    turns: list[list[_Step]] = [[]]
    for step in steps:
        turns[-1].append(step)
        if not step.has_calls:
            turns.append([])
    return turns if turns[-1] else turns[:-1]
