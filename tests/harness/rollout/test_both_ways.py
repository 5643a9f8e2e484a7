"""Streaming and lockstep play the same episodes, whatever the timing, and lose none, whatever fails."""

import random
import threading

import pytest

from eh_gym.errors import ConfigError
from harness.rollout.episode import RETRIES
from harness.rollout.rollout import rollout
from harness.settings.rollout import Rollout
from harness.types.seeding import derive_seed

BOTH = pytest.mark.parametrize("mode", ["streaming", "lockstep"])


def rules(mode):
    return Rollout(max_action_tokens=4, rollout=mode)


def play(fake, n=24, *, mode, slots=8, threads=8, **changes):
    sampler = changes.pop("sampler", None) or fake.Sampler()
    told = {name: changes.pop(name) for name in list(changes) if name == "on_end"}
    envs = fake.envs(slots, threads, **changes)
    try:
        played = rollout(envs, sampler, fake.Chat(), fake.requests(n), rules(mode), **told)
    finally:
        envs.close()
    assert not sampler.sessions, "episodes left in the sampler"
    return played


@pytest.mark.parametrize(("slots", "threads"), [(24, 24), (7, 3), (1, 1), (30, 0), (5, 0)])
def test_both_give_the_same_trajectories_whatever_the_timing(fake, slots, threads):
    clock = random.Random(0)

    def delay(task, step):
        return clock.random() * 0.004 if threads else 0.0

    expected = play(fake, mode="lockstep", slots=24, threads=0)
    assert len({t.length for t in expected}) > 3
    for mode in ("streaming", "lockstep"):
        assert play(fake, mode=mode, slots=slots, threads=threads, delay=delay) == expected


@BOTH
def test_all_that_are_ready_are_sampled_together_and_each_turn_draws_from_its_own_seed(fake, mode):
    sampler, together, seeds = fake.Sampler(), [], set()
    submit = sampler.submit
    sampler.submit = lambda request: seeds.add(request.seed) or submit(request)
    sampler.before_step = lambda: together.append(sampler.pending)
    played = play(fake, 8, mode=mode, threads=0, sampler=sampler)
    assert together[0] == 8
    assert seeds == {derive_seed(1000 + i, "turn", turn) for i, t in enumerate(played) for turn in range(t.length)}


def test_no_episode_waits_for_another_s_environment(fake):
    others = threading.Event()
    left = [7]

    def delay(task, step):
        if task == "task-0" and step == 1:
            assert others.wait(60), "the others stood still"
        return 0.0

    def ended(t):
        left[0] -= t.task_id != "task-0"
        if not left[0]:
            others.set()

    envs = fake.envs(3, 3, delay=delay)
    requests = [r for r in fake.requests(16) if r.seed % 2 == 0]  # one episode a task
    played = rollout(envs, fake.Sampler(), fake.Chat(), requests, rules("streaming"), on_end=ended)
    envs.close()
    assert [t.task_id for t in played] == [r.task_id for r in requests]


@BOTH
def test_the_context_ends_an_episode_and_nothing_is_cut_off(fake, mode):
    whole = play(fake, mode=mode)
    short = play(fake, mode=mode, sampler=fake.Sampler(max_context=120))
    full = [(a, b) for a, b in zip(short, whole, strict=True) if a.end == "context"]
    assert len(full) > 3
    for a, b in full:
        assert a.truncated
        assert not a.success
        assert (a.reward, len(a.ids) < 120) == (0.0, True)
        assert a.action_mask[-1] == 1  # an observation that no action follows is in no batch
        assert a.ids == b.ids[: len(a.ids)]
        assert a.turns[-1].observation.startswith("answer")  # but in the log
    assert all(a == b for a, b in zip(short, whole, strict=True) if a.end != "context")


@BOTH
def test_a_first_prompt_that_is_too_long_is_an_episode_without_a_step(fake, mode):
    for t in play(fake, 4, mode=mode, sampler=fake.Sampler(max_context=20)):
        assert (t.end, t.length, t.action_tokens) == ("context", 0, 0)


@BOTH
@pytest.mark.parametrize("how", ["told", "raise"])
@pytest.mark.parametrize("where", [0, 2])
def test_a_failed_episode_is_begun_again_with_the_same_seed(fake, mode, how, where):
    def fails(task, attempt):
        return (where, how) if task == "task-3" and attempt < 2 else None

    expected = play(fake, mode=mode)
    played = play(fake, mode=mode, fails=fails)
    for t, e in zip(played, expected, strict=True):
        if t.task_id == "task-3" and e.length >= where:
            # Each attempt had the prompt and what came until it failed.
            tokens = 0 if where == 0 else 2 * len(_until(e, where))
            assert (t.retries, t.failed_tokens) == (2, tokens)
            t.retries = t.failed_tokens = 0
        assert t == e
    assert any(e.length >= where for e in expected if e.task_id == "task-3")


def _until(t, step):
    ends = [i for i, (a, b) in enumerate(zip(t.action_mask, [*t.action_mask[1:], 0], strict=True)) if a and not b]
    return t.ids[: ends[step - 1] + 1]


@BOTH
def test_an_episode_that_fails_for_good_is_dropped_after_the_last_retry(fake, mode):
    def fails(task, attempt):
        return (1, "told") if task in ("task-0", "task-5") else None

    expected = play(fake, mode=mode)
    ended = []
    attempts = {}
    played = play(fake, mode=mode, fails=fails, attempts=attempts, on_end=ended.append, slots=3)
    lost = [t for t in played if t.end == "environment-error"]
    assert [t.task_id for t in lost] == ["task-0"] * 2 + ["task-5"] * 2
    for t in lost:
        assert (t.retries, t.reward, t.success, t.error) == (RETRIES, 0.0, False, "WorkerDied: killed")
        assert t.failed_tokens == (RETRIES + 1) * len(t.ids)
    assert [t for t in played if t not in lost] == [t for t in expected if t.task_id not in ("task-0", "task-5")]
    assert sorted(map(id, ended)) == sorted(map(id, played))  # each is told once
    assert sum(attempts.values()) == 4 * RETRIES


@BOTH
def test_an_error_of_our_own_is_not_retried(fake, mode):
    def fails(task, attempt):
        raise ConfigError("no such task")

    with pytest.raises(ConfigError, match="no such task"):
        play(fake, mode=mode, fails=fails)


def watched(fake):
    sampler = fake.Sampler()
    steps = []
    sampler.before_step = lambda: steps.append(
        {session: len(request.prompt_ids) for session, (request, *_) in sampler.running.items()}
    )
    return sampler, steps


@BOTH
@pytest.mark.parametrize("cache_tokens", [1, 300])
def test_who_is_admitted_to_a_small_cache_changes_no_trajectory(fake, mode, cache_tokens):
    sampler, steps = watched(fake)
    sampler.cache_of = lambda session: (None, cache_tokens)
    assert play(fake, mode=mode, slots=12, sampler=sampler) == play(fake, mode="lockstep", slots=12)
    assert max(map(len, steps)) < 12


@BOTH
def test_each_of_several_caches_holds_its_own_episodes(fake, mode):
    sampler, steps = watched(fake)
    sampler.cache_of = lambda session: (session % 2, (400, 150)[session % 2])
    assert play(fake, mode=mode, slots=12, threads=0, sampler=sampler) == play(fake, mode="lockstep", slots=12)
    slack = {"lockstep": 0, "streaming": 4 * 50}[mode]
    for step in steps:
        for place, cache in enumerate((400, 150)):
            held = [tokens for session, tokens in step.items() if session % 2 == place]
            assert len(held) <= 1 or sum(held) <= cache + slack
    assert max(map(len, steps)) > 2
