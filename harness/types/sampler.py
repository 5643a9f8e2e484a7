"""The sampler protocol. Token ids go in; token ids and the log-probabilities with which they were sampled come out.

A sampler runs only when it is asked: `submit` hands over one turn of an episode, and `step` advances all. It never
handles text; `harness.chat.chat` turns texts into ids.
"""

from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Protocol, runtime_checkable

from eh_gym.errors import ConfigError


@dataclass(frozen=True)
class SampleRequest:
    """One turn of one episode.

    Attributes:
        session: The episode. Each request of a session mostly extends the one before, so the sampler keeps what it
            computed for the earlier one. A session has at most one request at a time.
        prompt_ids: The whole conversation so far, never empty.
        max_tokens: The most tokens to sample, >= 1.
        seed: The only seed that the request draws from, whatever else is in the batch.
        temperature: The temperature of the sampled distribution, > 0 and at most 2; 0 takes the most likely token.
        stop_ids: Sampling ends after any of these tokens. The stop token is part of the sample.
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
        logprobs: The natural log-probability of each of `ids` under the distribution that was sampled, with the
            temperature applied; for greedy samples, under temperature 1.
        finish_reason: "stop" if the last token is a stop token, else "length".
        policy_version: The number of policy updates that the first token's weights had seen.
        versions: (policy version, number of tokens) of each span of tokens, in order. There is more than one span only
            if the weights changed while the request ran. By default the whole sample is of `policy_version`.
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


class Player(Protocol):
    """Who replies. It takes the requests of many episodes, and hands out the replies; a `Sampler` is one.

    An exception may take the place of a reply: NoRoom ends the episode, and SamplerError loses it.
    """

    @property
    def pending(self) -> int:
        """The number of submitted requests that `step` has not returned yet."""
        ...

    def submit(self, request: Any) -> None: ...

    def step(self) -> list[tuple[Any, Any]]:
        """Returns requests with their replies. It may wait a few milliseconds for one, and return none."""
        ...

    def end_session(self, session: Hashable) -> None:
        """Forgets an episode and drops its request if one is running. Ignores unknown sessions."""
        ...


@runtime_checkable
class Sampler(Player, Protocol):
    """Samples turns for many episodes at once.

    Attributes:
        max_context: The most tokens, prompt and sample together, that one episode may hold.
    """

    max_context: int

    def submit(self, request: SampleRequest) -> None:
        """Queues one request.

        Raises:
            ConfigError: The prompt is empty or too long, or has ids outside the vocabulary.
        """
        ...

    def step(self) -> list[tuple[SampleRequest, Sample]]:
        """Advances every running request; returns the finished ones, in the order in which they were submitted.

        An engine that runs elsewhere advances by itself. In that case a step waits a few milliseconds for a request to
        finish. It may return none.
        """
        ...

    def sleep(self) -> None:
        """Frees memory until `weights_changed` or `wake`. Meanwhile no request is pending or submitted."""
        ...

    def wake(self) -> None:
        """Ends `sleep` with the weights and the version from before it."""
        ...

    def weights_changed(self) -> int:
        """Takes over the policy's new weights and returns the new version.

        Nothing that was computed before is used again. Running requests go on under the new weights.
        """
        ...

    def close(self) -> None:
        """Drops every request and ends what the sampler has started. It is not used any more."""
        ...


@runtime_checkable
class LimitedCaches(Protocol):
    """A sampler whose cache of keys and values has a fixed size. On several servers each has one; an episode stays in
    it.
    """

    def cache_of(self, session: Hashable) -> tuple[Hashable, int]:
        """Returns an episode's cache, and its tokens; 0 if they are not known. A new episode gets a place at once."""
        ...


@runtime_checkable
class CacheMetrics(Protocol):
    """A sampler that says how its cache of keys and values was used."""

    def cache_metrics(self) -> dict[str, float]: ...


def checked_context(max_context: int | None, most: int, why: str = "the model's positions") -> int:
    """Returns the most tokens of an episode, by default `most`."""
    if max_context is not None and not 1 < max_context <= most:
        raise ConfigError(f"max_context must be in 2..{most} ({why}), got {max_context}")
    return max_context or most


def check_request(
    request: SampleRequest, *, vocab_size: int, max_context: int, running: Container[Hashable] = ()
) -> None:
    """Raises ConfigError for a request that no sampler can serve. An id out of range would crash or hang an engine.

    `running` are the sessions that have a request.
    """
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
    if not 0 <= request.temperature <= 2:  # vLLM allows no higher temperature
        raise ConfigError(f"temperature must be >= 0 and <= 2, got {request.temperature}; 0 samples greedily")
    if len(ids) + request.max_tokens > max_context:
        raise ConfigError(
            f"prompt ({len(ids)} tokens) and max_tokens ({request.max_tokens}) exceed the context of {max_context}; "
            "end the episode or lower max_tokens"
        )
    if request.session in running:
        raise ConfigError(f"session {request.session!r} already has a request; wait for it or use another session")


def sample_of(
    request: SampleRequest, ids: list[int], logprobs: list[float], versions: tuple[tuple[int, int], ...]
) -> Sample:
    return Sample(ids, logprobs, "stop" if ids[-1] in request.stop_ids else "length", versions[0][0], versions)


def spans(versions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Turns each token's policy version into `Sample.versions`.

    >>> spans([3, 3, 4])
    ((3, 2), (4, 1))
    """
    return tuple((version, len(list(run))) for version, run in groupby(versions))


def sample_all(sampler: Player, requests: Sequence[Any]) -> list[Any]:
    """Submits all requests and steps until every one is back. Returns the samples in the order of `requests`."""
    for request in requests:
        sampler.submit(request)
    done: dict[Hashable, Any] = {}
    while len(done) < len(requests):
        done |= {request.session: sample for request, sample in sampler.step()}
    return [done[request.session] for request in requests]
