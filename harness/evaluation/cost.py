"""The cost of an evaluation in requests and tokens: an estimate before it, and the count after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.rollout.environment import Environments, make_environment

__all__ = ["Cost", "estimated_cost", "spent"]

_SAMPLE = 16  # tasks that the estimate looks at, evenly spaced
_CHARS_PER_TOKEN = 4.0  # of English and JSON, roughly
_STEPS = 15  # assumed for a task that has no expert
_ANSWER_CHARS = 200  # assumed for each of these steps, and as many for the observation


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


def estimated_cost(environments: Environments, tasks: Sequence[str], episodes: int) -> Cost:
    """Estimates the cost of playing episodes of these tasks.

    The environment's expert plays some of the tasks, and four characters count as a token. A model that needs more steps, or
    writes more than the bare action, costs more.

    Args:
        environments: How the environment is made.
        tasks: The tasks; not empty.
        episodes: How many episodes are played in all.
    """
    chosen = tasks[:: -(-len(tasks) // _SAMPLE)]
    env = make_environment(environments.env_id, environments.args)
    try:
        played = [_task_cost(env, task_id) for task_id in chosen]
    finally:
        env.close()
    requests, read, written = (sum(values) * episodes / len(chosen) for values in zip(*played, strict=True))
    return Cost(round(requests), round(read / _CHARS_PER_TOKEN), round(written / _CHARS_PER_TOKEN))


def _task_cost(env: Any, task_id: str) -> tuple[int, int, int]:
    """Requests, characters read and characters written in one episode."""
    observation, info = env.reset(seed=0, options={"task_id": task_id})
    context = (
        len(info.get("system_prompt", "")) + len(observation) + sum(len(json.dumps(t)) for t in info.get("tools", ()))
    )
    if not hasattr(env.unwrapped, "expert"):
        return _assumed(context)
    steps = read = written = 0
    done = False
    while not done:
        try:
            action = str(env.unwrapped.expert())
        except ValueError:  # no reference solution, as in AppWorld's test splits
            return _assumed(context)
        observation, _, terminated, truncated, _ = env.step(action)
        steps, read, written = steps + 1, read + context, written + len(action)
        context += len(action) + len(observation)
        done = terminated or truncated
    return steps, read, written


def _assumed(context: int) -> tuple[int, int, int]:
    read = sum(context + step * 2 * _ANSWER_CHARS for step in range(_STEPS))
    return _STEPS, read, _STEPS * _ANSWER_CHARS


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
