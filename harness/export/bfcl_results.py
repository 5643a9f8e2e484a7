"""BFCL's result files, as bfcl-eval would have written them for the model, for ``bfcl evaluate``.

The fields are those of ``BaseHandler.inference_multi_turn_prompting`` of bfcl-eval 2026.3.23, and in the native format
of ``inference_multi_turn_FC``: for each turn, the model's messages with their numbers of tokens and latencies. The
inference log is left out, because the evaluation only copies it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
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


def write_bfcl_results(source: Path, out: Path, *, name: str = "") -> list[str]:
    """Writes ``OUT/NAME/multi_turn/BFCL_v4_multi_turn_CATEGORY_result.json`` for each category that was played.

    Returns what there is to say: how many of BFCL's 800 entries there are, and the command that scores them.
    """
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
    missing, where = len(task_ids("all")) - len(entries), out.resolve()
    return [
        f"{out}: {len(entries)} entries" + (f", {missing} missing" if missing else ""),
        f"{'OPENAI_API_KEY=unused ' if name == _NAMES['native'] else ''}bfcl evaluate --model {quote(name)} "
        f"--test-category multi_turn --result-dir {quote(str(where))} --score-dir {quote(str(where / 'score'))}"
        f"{' --partial-eval' if missing else ''}",
    ]


def result_entry(line: Mapping[str, Any], action_format: str) -> dict[str, Any]:
    """Returns the entry of one episode.

    An episode that K or the context stopped gets bfcl-eval's text for a failed inference, so that the entry fails
    there, too.
    """
    if line["end"] != "terminated":
        return {"id": line["task_id"], "result": f"Error during inference: the episode was stopped ({line['end']})"}
    turns: list[list[tuple[Any, ...]]] = [[]]
    context = line["prompt_tokens"]
    for turn in line["turns"]:
        context = turn.get("prompt_tokens") or context
        # The environment and bfcl-eval's handlers for Qwen leave out a thought in the action.
        action = turn["action"] if action_format == "native" else split_reply(turn["action"])[1]
        message = _message(action) if action_format == "native" else action
        turns[-1].append((message, context, turn["action_tokens"], turn.get("latency_s", 0.0)))
        if not _has_calls(action, action_format):  # such a message ends a turn; so may the limit of steps
            turns.append([])
        context += turn["action_tokens"] + turn["observation_tokens"]
    turns = turns if turns[-1] else turns[:-1]
    fields = ("result", "input_token_count", "output_token_count", "latency")
    values = {field: [[step[at] for step in turn] for turn in turns] for at, field in enumerate(fields)}
    return {"id": line["task_id"], **values}


def _message(action: str) -> str | list[dict[str, str]]:
    try:
        message = json.loads(action)
        calls = [call["function"] for call in message.get("tool_calls") or []]
        return [{call["name"]: _json_text(call["arguments"])} for call in calls] or str(message.get("content") or "")
    except (ValueError, TypeError, KeyError, AttributeError):
        return action


def _json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _has_calls(action: str, action_format: str) -> bool:
    try:
        return bool(FORMATS[action_format](action))
    except DecodeError:
        return False
