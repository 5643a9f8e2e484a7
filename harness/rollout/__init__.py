"""Rollouts: many episodes at once over the slots of a vector environment and one sampler.

Two ways to play the same episodes. `streaming`: every slot goes on by itself, and the sampler always holds the next turn
of every episode whose environment has answered. `lockstep`: all live episodes take a turn together, in slot order.
What an episode is (reset, prompt, turn, step, end, retry) is written once, for both, in `episode`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from eh_gym.errors import ConfigError
from eh_gym.vector import ThreadVectorEnv
from harness.chat import ChatFormat
from harness.rollout.book import Book, announce
from harness.rollout.episode import EpisodeRequest, Rules
from harness.rollout.lengths import EpisodeLengths, longest_first
from harness.rollout.lockstep import play_in_lockstep
from harness.rollout.streaming import play_streaming
from harness.sampling.base import Sampler
from harness.trajectory import Trajectory

__all__ = ["EpisodeLengths", "EpisodeRequest", "RolloutMode", "announce", "rollout"]

RolloutMode = Literal["streaming", "lockstep"]


def rollout(
    envs: ThreadVectorEnv,
    sampler: Sampler,
    chat: ChatFormat,
    requests: Sequence[EpisodeRequest],
    *,
    temperature: float,
    max_action_tokens: int,
    mode: RolloutMode = "lockstep",
    environment_retries: int = 2,
    lengths: EpisodeLengths | None = None,
    on_end: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays every request and returns the trajectories in the same order.

    The trajectories are a function of the requests: every reset and every turn draws from its own seed. With a sampler
    whose numbers depend on what else is in the batch (a matrix product rounds by its shape), they are so to the last bit
    in lockstep, and in streaming where environments are stepped in the caller's thread (``max_workers=0``). In streaming
    with threads the batches depend on timing: log-probabilities then differ in their last digits, and now and then a
    token that was on the border between two.

    Args:
        envs: The slots; each env is wrapped in ElasticTimeLimit, or not, by whoever made them.
        sampler: Samples the actions.
        chat: Turns texts into ids.
        requests: The episodes; more than there are slots wait for a free one.
        temperature: Of the sampled actions; 0 is greedy.
        max_action_tokens: The most tokens of one action; a longer one is cut and sent as it is.
        mode: "streaming" or "lockstep".
        environment_retries: How often an episode whose environment failed is begun again, >= 0.
        lengths: Where more episodes than slots wait, streaming starts those first that are expected to be longest;
            None for the given order, which lockstep always has.
        on_end: Called with each trajectory as it ends.
    """
    if environment_retries < 0:
        raise ConfigError(f"environment_retries must be >= 0, got {environment_retries}; 0 drops an episode at once")
    rules = Rules(temperature, max_action_tokens, environment_retries)
    queue = list(range(len(requests)))
    if mode == "streaming" and lengths is not None:
        queue = longest_first(requests, lengths)
    book = Book(envs, sampler, chat, requests, queue, rules, on_end)
    if mode == "streaming":
        play_streaming(book, sampler)
    elif mode == "lockstep":
        play_in_lockstep(book, sampler)
    else:
        raise ConfigError(f"mode must be one of streaming, lockstep, got {mode!r}")
    return book.trajectories()
