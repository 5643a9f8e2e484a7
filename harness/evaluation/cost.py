"""The cost of an evaluation in requests and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Usage", "spent"]


@dataclass(frozen=True)
class Usage:
    """Requests to a model, and tokens.

    Attributes:
        requests: The number of requests: one for each step.
        prompt_tokens: The tokens of all requests. A conversation counts again in each one, as endpoints bill it without a cache.
        completion_tokens: The tokens that the model writes.
    """

    requests: int
    prompt_tokens: int
    completion_tokens: int

    def __str__(self) -> str:
        return f"{self.requests:,} requests, {self.prompt_tokens:,} tokens read, {self.completion_tokens:,} written"


def spent(lines: Iterable[Mapping[str, Any]]) -> Usage:
    """Counts the cost of episodes, given as lines of the log: by the count of the endpoint, if there is one."""
    requests = asked = written = 0
    for line in lines:
        context = line["prompt_tokens"]
        for turn in line["turns"]:
            context = turn.get("prompt_tokens") or context
            requests, asked, written = requests + 1, asked + context, written + turn["action_tokens"]
            context += turn["action_tokens"] + turn["observation_tokens"]
    return Usage(requests, asked, written)
