"""Batches that play in a thread without a barrier between them, under weights that change."""

import threading
from contextlib import ExitStack, closing

import pytest
from quiet_run import rows_of_run as run

from eh_gym.errors import SamplerError
from harness.records.episode_log import read_episodes
from harness.rollout.batches import Batches
from harness.rollout.continuous import ContinuousRollout
from harness.rollout.rollout import rollout
from harness.settings.rollout import Rollout
from harness.settings.section import changed
from harness.types.request import EpisodeRequest


def some(count, *, first=0):
    return [EpisodeRequest(f"task-{i}", i, seed=i) for i in range(first, first + count)]


RULES = Rollout(max_action_tokens=5)


def begin_batch(player, requests):
    return player.begin(requests, RULES, lambda _: None)


@pytest.fixture
def begin(fake):
    with ExitStack() as opened:
        yield lambda *on: opened.enter_context(closing(ContinuousRollout(*on, fake.Chat())))


def test_a_batch_does_not_wait_for_the_one_before(begin, fake):
    release = threading.Event()

    def delay(task, step):
        if task == "task-0":
            release.wait(30)
        return 0.0

    player = begin(fake.envs(4, 4, delay=delay), fake.Sampler())
    first, second = begin_batch(player, some(6)), begin_batch(player, some(6, first=6))
    assert [t.task_id for t in second.result(timeout=30).trajectories] == [f"task-{i}" for i in range(6, 12)]
    assert not first.done()
    release.set()
    envs = fake.envs(4, 4)
    assert first.result(timeout=30).trajectories == rollout(envs, fake.Sampler(), fake.Chat(), some(6), RULES)
    envs.close()


def test_nothing_is_sampled_in_a_pause(begin, fake):
    sampler = fake.Sampler()
    steps = 0

    def count():
        nonlocal steps
        steps += 1

    sampler.before_step = count
    player = begin(fake.envs(4, 4), sampler)
    playing = begin_batch(player, some(200))
    for _ in range(20):
        with player.paused():
            before = steps
            sampler.weights_changed()
            assert not threading.Event().wait(0.01)
            assert steps == before
    assert len(playing.result(timeout=60).trajectories) == 200
    assert begin_batch(player, []).result(timeout=30).trajectories == []  # a rank may have no episodes


def test_an_error_of_the_sampling_thread_reaches_whoever_waits(begin, fake):
    sampler = fake.Sampler()

    def fail():
        raise SamplerError("the engine is gone")

    player = begin(fake.envs(4, 4), sampler)
    assert len(begin_batch(player, some(4)).result(timeout=30).trajectories) == 4
    sampler.before_step = fail
    for playing in (begin_batch(player, some(4)), begin_batch(player, some(4))):
        with pytest.raises(SamplerError, match="the engine is gone"):
            playing.result(timeout=30)
    with player.paused():
        pass
    with pytest.raises(SamplerError, match="the engine is gone"):
        begin_batch(player, some(1)).result(timeout=30)


def test_closing_in_the_middle_of_a_batch_ends_it(fake):
    envs = fake.envs(4, 4, delay=lambda task, step: 0.01)
    continuous = ContinuousRollout(envs, fake.Sampler(), fake.Chat())
    playing = begin_batch(continuous, some(500))
    continuous.close()
    assert playing.exception(timeout=30) is not None


@pytest.fixture
def stale(quick, own_cache):
    return changed(quick, max_staleness=3, rollout="streaming", updates=6, eval_tasks=0, env_threads=4, slots=6)


def episodes_of(config):
    return [e for path in sorted((config.out / "episodes").glob("*.jsonl*")) for e in read_episodes(path)]


def test_without_learning_each_update_has_the_episodes_that_taking_turns_plays(stale, tmp_path):
    still = changed(stale, learning_rate=0.0, wrapper="fixed", k0=12)
    rows = run(still)
    assert [row["rollout/episodes"] for row in rows] == [16.0] * 6
    assert {e["update"] - v for e in episodes_of(still) for v in e["versions"]} <= {0, 1, 2, 3}
    in_turns = changed(still, out=tmp_path / "turns", max_staleness=0)
    same = ("rollout/success", "rollout/length_mean", "rollout/truncated", "tokens/update")
    for row, expected in zip(rows, run(in_turns), strict=True):
        assert {name: row[name] for name in same} == {name: expected[name] for name in same}
    played, expected = ([(e["update"], e["task_id"]) for e in episodes_of(each)] for each in (still, in_turns))
    assert played == expected


@pytest.fixture
def far_ahead(stale, monkeypatch):
    """The sampler is done with all that it may play before the trainer goes on: it is as far ahead as it can be."""
    prepare_next = Batches.prepare

    def prepare_and_wait(self, *args):
        prepare_next(self, *args)
        for batch in self._begun.values():
            batch.result(timeout=60)

    monkeypatch.setattr(Batches, "prepare", prepare_and_wait)
    return stale


@pytest.mark.parametrize("staleness", [1, 3])
def test_no_batch_begins_further_ahead_than_allowed(far_ahead, staleness):
    rows = run(changed(far_ahead, max_staleness=staleness))
    assert [row["rollout/policy_lag"] for row in rows] == [float(min(update, staleness)) for update in range(6)]
