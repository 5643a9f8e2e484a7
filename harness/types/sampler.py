"""The sampler protocol: token ids in; token ids and the log-probabilities they were drawn with out.

A sampler is driven, it never runs by itself: `submit` hands over one request per episode turn, `step` advances every
running request and returns those that became ready. Lockstep rollouts step until all are back; rollouts without
barriers submit the next turn as soon as its environment has answered. Left out: text. Nothing is tokenised here, so
nothing can be re-tokenised.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Protocol, runtime_checkable

from eh_gym.errors import ConfigError

__all__ = ["Sample", "SampleRequest", "Sampler", "check_request", "sample_all", "spans"]


@dataclass(frozen=True)
class SampleRequest:
    """One turn of one episode.

    Attributes:
        session: The episode. The requests of a session extend one another, so what was computed for one is kept for
            the next; a session has at most one request at a time.
        prompt_ids: The whole conversation so far, never empty.
        max_tokens: The most tokens to sample, >= 1.
        seed: The request draws from this seed alone, whatever else is in the batch.
        temperature: Of the sampled distribution, > 0 and at most 2; or 0 for the most likely token.
        stop_ids: Sampling ends after any of these tokens, which is part of the sample.
    """

    session: Hashable
    prompt_ids: Sequence[int]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Sample:
    """What the model wrote.

    Attributes:
        ids: The sampled tokens, the stop token included; 1 to ``max_tokens`` of them.
        logprobs: For each of `ids` its natural log-probability under the distribution actually sampled (temperature
            applied); for greedy samples, under temperature 1.
        finish_reason: "stop" if the last token is a stop token, else "length".
        policy_version: How many weight updates the sampler had seen when it sampled the first token.
        versions: (policy version, number of tokens) of each span of tokens, in order; more than one only where the
            weights changed while the request ran. By default the whole sample is of `policy_version`.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    policy_version: int
    versions: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.versions:
            object.__setattr__(self, "versions", ((self.policy_version, len(self.ids)),))
        first, total = self.versions[0][0], sum(n for _, n in self.versions)
        assert (first, total) == (self.policy_version, len(self.ids)), "the spans cover the sample"


@runtime_checkable
class Sampler(Protocol):
    """Samples turns for many episodes at once."""

    @property
    def max_context(self) -> int:
        """The most tokens, prompt and sample together, that one episode may hold."""
        ...

    @property
    def pending(self) -> int:
        """How many submitted requests have not come back yet."""
        ...

    def submit(self, request: SampleRequest) -> None:
        """Queues one request; ConfigError for ids outside the vocabulary, an empty or an overlong prompt."""
        ...

    def step(self) -> list[tuple[SampleRequest, Sample]]:
        """Advances every running request; returns those that are ready, in the order they were submitted.

        An engine that runs elsewhere advances by itself: there a step waits a few milliseconds for something to be
        ready. None may be ready.
        """
        ...

    def end_session(self, session: Hashable) -> None:
        """Forgets an episode and drops its request if one is running. Unknown sessions are ignored."""
        ...

    def sleep(self) -> None:
        """Gives back what memory it can until `weights_changed`; no request may be pending, none may be submitted."""
        ...

    def weights_changed(self) -> int:
        """Takes over the policy's new weights: nothing computed before is used again. Returns the new version.

        Running requests go on under the new weights.
        """
        ...


def check_request(request: SampleRequest, *, vocab_size: int, max_context: int) -> None:
    """Raises ConfigError for a request that no sampler can serve; an id out of range would crash or hang an engine."""
    ids = request.prompt_ids
    if not len(ids):
        raise ConfigError("prompt_ids is empty; a request needs at least one token")
    if min(ids) < 0 or max(ids) >= vocab_size:
        bad = next(i for i in ids if not 0 <= i < vocab_size)
        raise ConfigError(
            f"prompt_ids holds {bad}, outside the model's vocabulary of {vocab_size}; use the model's own tokenizer"
        )
    if request.max_tokens < 1:
        raise ConfigError(f"max_tokens must be >= 1, got {request.max_tokens}")
    if not 0 <= request.temperature <= 2:  # vLLM has no higher
        raise ConfigError(f"temperature must be >= 0 and <= 2, got {request.temperature}; 0 samples greedily")
    if len(ids) + request.max_tokens > max_context:
        raise ConfigError(
            f"prompt ({len(ids)} tokens) and max_tokens ({request.max_tokens}) exceed the context of {max_context}; "
            "end the episode or lower max_tokens"
        )


def spans(versions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Each token's policy version as `Sample.versions`.

    >>> spans([3, 3, 4])
    ((3, 2), (4, 1))
    """
    return tuple((version, len(list(run))) for version, run in groupby(versions))


def sample_all(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[Sample]:
    """Submits all requests and steps until every one is back; the samples come in the order of `requests`."""
    for request in requests:
        sampler.submit(request)
    done: dict[Hashable, Sample] = {}
    while len(done) < len(requests):
        done |= {request.session: sample for request, sample in sampler.step()}
    return [done[request.session] for request in requests]
