"""Reads BFCL's entries, ground truth and function documents from the JSON files inside bfcl-eval.

bfcl-eval's own loader needs packages that are not installed, and creates folders on import.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One multi-turn task.

    Attributes:
        task_id: The official id.
        turns: The user's messages of each turn, joined. A turn that only reveals held-out functions has an empty text.
        ground_truth: The official calls of each turn, as source text.
        classes: The simulators that the entry uses.
        initial_config: The start states of the simulators.
        functions: The function documents that are shown from the start.
        held_out: Turn -> the function documents that are revealed at that turn.
    """

    task_id: str
    turns: tuple[str, ...]
    ground_truth: tuple[tuple[str, ...], ...]
    classes: tuple[str, ...]
    initial_config: dict[str, Any]
    functions: tuple[dict[str, Any], ...]
    held_out: dict[int, tuple[dict[str, Any], ...]]


def load_entry(task_id: str) -> Entry:
    category = task_id.rsplit("_", 1)[0]
    entry, answer = _category(category)[task_id]
    functions = [document for name in entry["involved_classes"] for document in _documents(name)]
    held_out = {
        int(turn): tuple(d for name in names for d in functions if d["name"] == name)
        for turn, names in entry.get("missed_function", {}).items()
    }
    hidden = {d["name"] for documents in held_out.values() for d in documents}
    return Entry(
        task_id=task_id,
        turns=tuple("\n".join(message["content"] for message in turn) for turn in entry["question"]),
        ground_truth=tuple(tuple(turn) for turn in answer["ground_truth"]),
        classes=tuple(entry["involved_classes"]),
        initial_config=entry["initial_config"],
        functions=tuple(d for d in functions if d["name"] not in hidden),
        held_out=held_out,
    )


@functools.cache
def _data() -> Path:
    return Path(str(files("bfcl_eval"))) / "data"


@functools.cache
def _category(category: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    name = f"BFCL_v4_{category}.json"
    entries, answers = _rows(_data() / name), _rows(_data() / "possible_answer" / name)
    return {e["id"]: (e, a) for e, a in zip(entries, answers, strict=True) if e["id"] == a["id"]}


@functools.cache
def _documents(class_name: str) -> list[dict[str, Any]]:
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING as FILES

    return _rows(_data() / "multi_turn_func_doc" / FILES[class_name])


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
