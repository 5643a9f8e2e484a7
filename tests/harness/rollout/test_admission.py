"""Who plays when a sampler's cache is small: no more tokens than it holds, nobody is stuck, and nothing else changes."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.evaluation.held_out import HeldOut
from harness.policy.ranks import Ranks
from harness.rollout.rollout import rollout
from harness.rollout.slots import fitting
from harness.settings.grpo import GRPOConfig
from harness.types.rules import Rules
from harness.types.trajectory import Trajectory

BOTH = pytest.mark.parametrize("mode", ["streaming", "lockstep"])


def play(fake: Any, sampler: Any, mode: Any, *, slots: int = 12, threads: int = 4, **envs: Any) -> list[Trajectory]:
    opened = fake.envs(slots, threads, **envs)
    try:
        return rollout(opened, sampler, fake.Chat(), fake.requests(24), Rules(1.0, 4, mode=mode))
    finally:
        opened.close()


def test_the_oldest_play_as_many_as_fit_into_nine_tenths_of_the_cache() -> None:
    assert fitting([400, 300, 200, 1], cache_tokens=1000) == 3  # 900
    assert fitting([400, 300, 201], cache_tokens=1000) == 2
    assert fitting([5000], cache_tokens=1000) == 1  # one plays whatever its length


class Watched:
    """A sampler with a cache of fixed size, and the tokens of the requests that ran in each of its steps, by session."""

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


@pytest.mark.parametrize(("mode", "most"), [("lockstep", 600), ("streaming", 600 + 4 * 50)])
def test_the_requests_that_run_together_fit_the_cache(fake: Any, mode: str, most: int) -> None:
    """In streaming, an episode that is to be held back may still have a request that runs, but it gets no next one."""
    watched = Watched(fake, 600)
    play(fake, watched.sampler, mode, threads=0)
    assert all(len(step) == 1 or sum(step.values()) <= most for step in watched.steps)
    assert max(map(len, watched.steps)) > 1


def test_a_rank_evaluates_in_as_many_slots_as_it_trains_in() -> None:
    config = GRPOConfig(tasks_per_update=4, group_size=8, eval_tasks=4)
    ranks: Any = SimpleNamespace(size=8)
    environments, tasks = HeldOut.choose(config, config.env, ranks)
    assert (environments.slots, len(tasks)) == (config.slots_of_rank(8), 4) == (4, 4)
    assert HeldOut.choose(config, config.env, Ranks())[0].slots == 32


def test_a_held_back_turn_is_sampled_when_a_slow_environment_has_answered(fake: Any) -> None:
    """The longest episode waits for its environment, and all others for it: the loop must wait, not stop."""
    release = threading.Timer(0.3, lambda: answered.set())
    answered = threading.Event()
    release.start()

    def delay(task: str, step: int) -> float:
        if task == "task-0" and step == 2:
            assert answered.wait(60)
        return 0.0

    assert play(fake, Watched(fake, 150).sampler, "streaming", delay=delay) == play(fake, fake.Sampler(), "lockstep")
