"""Who plays when a sampler's cache is small: no more tokens than it holds, nobody is stuck, and nothing else
changes."""

from collections.abc import Hashable
from typing import Any

import pytest

from harness.rollout.rollout import rollout
from harness.settings.rollout import Rollout
from harness.types.trajectory import Trajectory

BOTH = pytest.mark.parametrize("mode", ["streaming", "lockstep"])


def play(fake: Any, sampler: Any, mode: Any, *, slots: int = 12, threads: int = 4, **envs: Any) -> list[Trajectory]:
    opened = fake.envs(slots, threads, **envs)
    try:
        return rollout(opened, sampler, fake.Chat(), fake.requests(24), Rollout(max_action_tokens=4, rollout=mode))
    finally:
        opened.close()


class Watched:
    """A sampler with a cache of fixed size, and the tokens of the requests that ran in each of its steps, by
    session."""

    def __init__(self, fake: Any, cache_tokens: int) -> None:
        self.sampler = fake.Sampler()
        self.sampler.cache_tokens = cache_tokens
        self.sampler.before_step = self._look
        self.steps: list[dict[Hashable, int]] = []

    def _look(self) -> None:
        running = self.sampler.running.items()
        self.steps.append({session: len(request.prompt_ids) for session, (request, *_) in running})


@BOTH
@pytest.mark.parametrize("cache_tokens", [1, 300])
def test_who_is_admitted_changes_no_trajectory(fake: Any, mode: str, cache_tokens: int) -> None:
    expected = play(fake, fake.Sampler(), "lockstep")
    watched = Watched(fake, cache_tokens)
    assert play(fake, watched.sampler, mode) == expected
    assert not watched.sampler.sessions
    assert max(map(len, watched.steps)) < 12


@BOTH
def test_each_of_several_caches_holds_its_own_episodes(fake: Any, mode: str) -> None:

    def cache_of(session: int) -> tuple[int, int]:
        return session % 2, (400, 150)[session % 2]

    expected = play(fake, fake.Sampler(), "lockstep")
    watched = Watched(fake, 0)
    watched.sampler.cache_of = cache_of
    assert play(fake, watched.sampler, mode, threads=0) == expected
    assert not watched.sampler.sessions
    slack = {"lockstep": 0, "streaming": 4 * 50}[mode]
    for step in watched.steps:
        for place, cache in enumerate((400, 150)):
            held = [tokens for session, tokens in step.items() if session % 2 == place]
            assert len(held) <= 1 or sum(held) <= cache + slack
    assert max(map(len, watched.steps)) > 2
