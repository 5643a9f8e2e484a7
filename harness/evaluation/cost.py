"""The cost of an evaluation in requests and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Cost", "spent"]


@dataclass(frozen=True)
class Cost:
    """Requests to a model, and tokens.

    Attributes:
        requests: The number of requests: one for each step.
        input_tokens: The tokens of all requests. A conversation counts again in each one, as endpoints bill it without a cache.
        output_tokens: The tokens that the model writes.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
        )

    def __str__(self) -> str:
        return f"{self.requests:,} requests, {self.input_tokens:,} tokens read, {self.output_tokens:,} written"


def spent(lines: Iterable[Mapping[str, Any]]) -> Cost:
    """Counts the cost of episodes, given as lines of the log."""
    cost = Cost()
    for line in lines:
        context = line["prompt_tokens"]
        for turn in line["turns"]:
            context = turn.get("prompt_tokens") or context
            cost += Cost(1, context, turn["action_tokens"])
            context += turn["action_tokens"] + turn["observation_tokens"]
    return cost
