"""The input of a rollout: the episodes to play, and the rules that hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["REASONING_FORMATS", "EpisodeRequest", "RolloutMode", "Rules"]

RolloutMode = Literal["streaming", "lockstep"]
REASONING_FORMATS = ("auto", "none", "tags", "opened", "harmony")
"""How a model writes its thoughts; `harness.chat.reasoning` reads them. Instead of a name, the text may be two tags."""


@dataclass(frozen=True)
class EpisodeRequest:
    """One episode to play.

    Attributes:
        task_id: The task.
        group: The index of the task in its update.
        seed: The environment's reset and every sampled turn derive their seeds from it.
    """

    task_id: str
    group: int
    seed: int


@dataclass(frozen=True)
class Rules:
    """The rules for every episode of a rollout.

    Attributes:
        temperature: The temperature of the sampled actions; 0 is greedy.
        max_action_tokens: The most tokens of one action. A longer one is cut and sent as it is.
        mode: "streaming" or "lockstep"; `harness.rollout.rollout.rollout` explains them.
    """

    temperature: float = 1.0
    max_action_tokens: int = 1024
    mode: RolloutMode = "lockstep"
