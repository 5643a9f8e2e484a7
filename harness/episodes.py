"""The episode log: one JSON Lines file per update, to read what the agent did, turn by turn."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.trajectory import Trajectory

__all__ = ["write_episodes"]


def write_episodes(folder: Path, update: int, trajectories: Sequence[Trajectory]) -> Path:
    """Writes ``update-000012.jsonl``, whole or not at all, and returns its path.

    A line has the task, group, K, reward, success, end reason, and ``turns`` of action, observation, cut and malformed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"update-{update:06d}.jsonl"
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for t in trajectories:
            file.write(json.dumps(_line(update, t), ensure_ascii=False) + "\n")
    os.replace(part, path)
    return path


def _line(update: int, t: Trajectory) -> dict[str, Any]:
    return {
        "update": update,
        "task_id": t.task_id,
        "group": t.group,
        "horizon": t.horizon,
        "length": t.length,
        "reward": t.reward,
        "success": t.success,
        "end": t.end,
        "error": t.error,
        "optimal_steps": t.optimal_steps,
        "tokens": len(t.ids),
        "action_tokens": t.action_tokens,
        "versions": sorted(set(t.versions)),
        "prompt": t.prompt,
        "turns": [vars(turn) for turn in t.turns],
    }
