"""One episode as the trainer sees it, and batches of them.

An episode is one list of token ids with a mask of which of them the model wrote. Left out: text, which the episode log
keeps, and any second tokenisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from eh_gym.horizon.controller import EpisodeOutcome
from harness.sampling.base import Sample

__all__ = ["Batch", "EndReason", "Trajectory", "Turn", "collate", "microbatches"]

EndReason = Literal["terminated", "horizon", "truncated", "context", "environment-error"]


@dataclass
class Turn:
    """One step: what the model wrote and what came back."""

    action: str
    observation: str
    cut: bool
    malformed: bool


@dataclass
class Trajectory:
    """One episode.

    Attributes:
        task_id: The task.
        group: Index of the task in its update; the episodes of a group share it.
        horizon: The K of this episode; 0 where there is none.
        ids: All tokens.
        action_mask: For each token 1 if the model sampled it, else 0.
        logprobs: For each sampled token its log-probability when it was sampled, else 0.0.
        versions: For each sampled turn the policy version that wrote it.
        prompt: The first observation, for the log.
        turns: One entry a step.
        reward: The sum of the rewards.
        success: The environment's verdict.
        end: Why the episode ended.
        error: The environment's error, where `end` is "environment-error".
        retries: How often it was begun again because its environment had failed.
        failed_tokens: All tokens of the attempts that failed; of this one too, where `end` is "environment-error".
        optimal_steps: The shortest solution, where the environment knows it.
        info: What the reset said, but for the system prompt.
    """

    task_id: str
    group: int
    horizon: int = 0
    ids: list[int] = field(default_factory=list)
    action_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    prompt: str = ""
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    success: bool = False
    end: EndReason = "terminated"
    error: str | None = None
    retries: int = 0
    failed_tokens: int = 0
    optimal_steps: int | None = None
    info: dict[str, Any] = field(default_factory=dict)

    def add_prompt(self, ids: Sequence[int]) -> None:
        """Appends tokens that the model did not write."""
        self.ids += ids
        self.action_mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def add_sample(self, sample: Sample) -> None:
        """Appends what the model wrote, as it was sampled."""
        self.ids += sample.ids
        self.action_mask += [1] * len(sample.ids)
        self.logprobs += sample.logprobs
        self.versions.append(sample.policy_version)

    @property
    def length(self) -> int:
        """Steps taken."""
        return len(self.turns)

    @property
    def truncated(self) -> bool:
        """Stopped by K, by the environment's own limit or by the context, rather than ended by the task's rules."""
        return self.end in ("horizon", "truncated", "context")

    @property
    def action_tokens(self) -> int:
        """Tokens that the model wrote."""
        return sum(self.action_mask)

    def outcome(self) -> EpisodeOutcome:
        """What the horizon controller is told."""
        return EpisodeOutcome(
            max(1, self.length), max(1, self.horizon), self.success, self.truncated, self.task_id, self.info
        )


@dataclass(frozen=True)
class Batch:
    """Episodes padded on the right; S is the longest of them.

    Attributes:
        ids: int64 [B, S].
        action_mask: bool [B, S].
        logprobs: float32 [B, S], as sampled; 0 where the model did not write.
    """

    ids: Tensor
    action_mask: Tensor
    logprobs: Tensor


def collate(trajectories: Sequence[Trajectory], *, pad_id: int, device: torch.device | str = "cpu") -> Batch:
    """Pads episodes into one batch; causal attention never lets a token see the padding to its right."""
    shape = len(trajectories), max(len(t.ids) for t in trajectories)
    ids = np.full(shape, pad_id, dtype=np.int64)
    mask = np.zeros(shape, dtype=bool)
    logprobs = np.zeros(shape, dtype=np.float32)
    for i, t in enumerate(trajectories):
        n = len(t.ids)
        ids[i, :n], mask[i, :n], logprobs[i, :n] = t.ids, t.action_mask, t.logprobs
    return Batch(*(torch.from_numpy(a).to(device) for a in (ids, mask, logprobs)))


def microbatches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Groups episodes of like length so that each group, padded, holds at most `max_tokens` tokens (or one episode).

    >>> list(microbatches([5, 90, 6, 80], max_tokens=180))
    [[0, 2], [3, 1]]
    """
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if group and lengths[i] * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
