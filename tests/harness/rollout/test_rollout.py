"""Rollouts of a real policy: one growing list of ids, K, the context, failing environments, and what timing may change."""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium as gym
import pytest

import eh_gym
from eh_gym import FixedHorizon, ThreadVectorEnv
from eh_gym.errors import WorkerDied
from eh_gym.wrappers import ElasticTimeLimit
from harness.policy.policy import Policy
from harness.rollout.rollout import rollout
from harness.rollout.slots import announce
from harness.sampling.transformers import TransformersSampler
from harness.training.update import update_policy
from harness.types.rules import EpisodeRequest, Rules
from harness.types.trajectory import Trajectory


def requests(n: int, group: int = 2) -> list[EpisodeRequest]:
    return [EpisodeRequest(f"train-{i // group:06d}", i // group, seed=1000 + i) for i in range(n)]


BOTH = pytest.mark.parametrize("mode", ["streaming", "lockstep"])


def play(
    policy: Policy, n: int = 12, *, k: int = 12, slots: int = 12, threads: int | None = None, **changes: Any
) -> list[Trajectory]:
    envs = eh_gym.make_vec("EH-Cabinet-v0", slots, FixedHorizon(k), record=False, max_workers=threads)
    settings: dict[str, Any] = {"temperature": 1.0, "max_action_tokens": 6} | changes
    max_context = settings.pop("max_context", None)
    try:
        sampler = TransformersSampler(policy.model, max_context=max_context)
        return rollout(envs, sampler, policy.chat, requests(n), Rules(**settings))
    finally:
        envs.close()


@BOTH
def test_the_ids_are_the_conversation_and_the_mask_is_what_the_model_wrote(trained: Policy, mode: Any) -> None:
    for t in play(trained, mode=mode):
        replies: list[list[int]] = []
        for before, token, written in zip([0, *t.action_mask], t.ids, t.action_mask, strict=False):
            if written and not before:
                replies.append([])
            if written:
                replies[-1].append(token)
        assert [trained.chat.read(r).action for r in replies] == [turn.action for turn in t.turns]
        assert t.prompt in trained.chat.text(t.ids).replace(" ", "").replace("start", "start ")
        assert len(t.ids) == len(t.action_mask) == len(t.logprobs)
        assert all(lp == 0.0 for lp, written in zip(t.logprobs, t.action_mask, strict=True) if not written)


@BOTH
def test_sampled_logprobs_are_those_that_the_trainer_recomputes(trained: Policy, mode: Any) -> None:
    batch = trained.batch(play(trained, mode=mode))
    logp, _ = trained.score(batch, 1.0)
    difference = ((logp - batch.logprobs).abs() * batch.action_mask).max()
    assert difference < 1e-4


def test_an_episode_that_reaches_k_is_truncated_without_reward(trained: Policy) -> None:
    short = play(trained, k=4)
    assert {t.end for t in short} == {"terminated", "horizon"}
    for t in short:
        assert t.length <= 4
        assert t.truncated == (t.end == "horizon")
        if t.truncated:
            assert (t.length, t.reward, t.success) == (4, 0.0, False)
        assert t.outcome().horizon == 4


def test_the_environment_says_the_same_as_the_trajectory(trained: Policy) -> None:
    """Replaying the recorded actions gives the recorded observations, reward and end."""
    env = gym.make("EH-Cabinet-v0")
    for t in play(trained, k=50):
        observation, _ = env.reset(options={"task_id": t.task_id})
        assert observation == t.prompt
        for turn in t.turns:
            observation, reward, terminated, _, info = env.step(turn.action)
            assert (observation, info["malformed"]) == (turn.observation, turn.malformed)
        assert (terminated, reward) == (t.end == "terminated", t.reward)


def test_fewer_slots_than_episodes_play_the_same_episodes(trained: Policy) -> None:
    every, few = play(trained, slots=12), play(trained, slots=5)
    assert [t.ids for t in every] == [t.ids for t in few]
    assert [t.success for t in every] == [t.success for t in few]


def test_a_full_context_ends_the_episode_as_truncated(trained: Policy) -> None:
    trajectories = play(trained, k=50, max_context=32)
    assert all(len(t.ids) <= 32 for t in trajectories)
    full = [t for t in trajectories if t.end == "context"]
    assert full
    assert all(t.truncated and not t.success and t.reward == 0 for t in full)


class _Slow(gym.Wrapper):
    """Answers after a random time, different in every run."""

    def step(self, action: Any) -> Any:
        time.sleep(random.Random().random() * 0.01)
        return self.env.step(action)


def test_in_lockstep_the_order_in_which_environments_answer_changes_nothing(trained: Policy) -> None:
    fixed = FixedHorizon(8)
    make = lambda: ElasticTimeLimit(_Slow(gym.make("EH-Cabinet-v0")), fixed, record=False)  # noqa: E731
    envs = ThreadVectorEnv([make] * 6)
    arguments: dict[str, Any] = {"temperature": 1.0, "max_action_tokens": 6}
    slow = rollout(envs, TransformersSampler(trained.model), trained.chat, requests(12), Rules(**arguments))
    envs.close()
    assert slow == play(trained, k=8, slots=6)  # to the last bit of every log-probability


def test_streaming_in_one_thread_is_the_same_to_the_last_bit(trained: Policy) -> None:
    first, second = (play(trained, k=20, slots=5, threads=0, mode="streaming") for _ in range(2))
    assert first == second


def test_streaming_with_threads_differs_in_rounding_only(trained: Policy) -> None:
    fixed = FixedHorizon(20)
    make = lambda: ElasticTimeLimit(_Slow(gym.make("EH-Cabinet-v0")), fixed, record=False)  # noqa: E731
    envs = ThreadVectorEnv([make] * 6)
    arguments: dict[str, Any] = {"temperature": 1.0, "max_action_tokens": 6, "mode": "streaming"}
    streamed = rollout(envs, TransformersSampler(trained.model), trained.chat, requests(12), Rules(**arguments))
    envs.close()
    for a, b in zip(streamed, play(trained, k=20), strict=True):
        assert (a.ids, a.turns, a.reward, a.end) == (b.ids, b.turns, b.reward, b.end)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


class _Failing(gym.Wrapper):
    """Fails in its third step, or while it is reset, as an environment does whose worker died."""

    def __init__(self, env: gym.Env, *, at_reset: bool) -> None:
        super().__init__(env)
        self._at_reset, self._steps = at_reset, 0

    def reset(self, **arguments: Any) -> Any:
        self._steps = 0
        if self._at_reset:
            raise WorkerDied("gone")
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 3:
            return "failed", 0.0, False, True, {"environment_error": "WorkerDied: gone", "success": False}
        return self.env.step(action)


@BOTH
@pytest.mark.parametrize("at_reset", [False, True])
def test_a_failing_environment_costs_its_episode_only(trained: Policy, at_reset: bool, mode: Any) -> None:
    fixed = FixedHorizon(30)
    good = lambda: ElasticTimeLimit(gym.make("EH-Cabinet-v0"), fixed, record=False)  # noqa: E731
    bad = lambda: ElasticTimeLimit(_Failing(gym.make("EH-Cabinet-v0"), at_reset=at_reset), fixed, record=False)  # noqa: E731
    envs = ThreadVectorEnv([good, good, good, bad])
    arguments: dict[str, Any] = {"temperature": 1.0, "max_action_tokens": 6, "mode": mode}
    played = rollout(envs, TransformersSampler(trained.model), trained.chat, requests(4), Rules(**arguments))
    envs.close()
    assert [t.end == "environment-error" for t in played] == [False, False, False, True]
    assert "gone" in (played[3].error or "")
    assert not played[3].success
    assert [t.ids for t in played[:3]] == [t.ids for t in play(trained, 4, k=30)[:3]]


def test_zero_advantage_groups_leave_the_weights_alone(trained: Policy) -> None:
    import copy

    import torch

    from harness.settings.presets import preset

    policy = Policy(copy.deepcopy(trained.model), trained.tokenizer, trained.chat)
    trajectories = list(play(trained, k=1))  # nothing can succeed in one step
    assert not any(t.success for t in trajectories)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1.0)
    metrics = update_policy(policy, optimizer, trajectories, preset([]).loss_settings(), seed=0)
    assert metrics["train/zero_advantage_groups"] == 1.0
    for a, b in zip(policy.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(a, b)


class _Ahead(gym.Wrapper):
    """An environment that can make episodes ready ahead."""

    asked: list[list[str]]

    def prepare(self, task_ids: list[str]) -> None:
        self.asked.append(list(task_ids))

    @property
    def unwrapped(self) -> Any:
        return self


def test_environments_that_can_prepare_are_told_what_waits(trained: Policy) -> None:
    asked: list[list[str]] = []

    def make() -> gym.Env:
        env = _Ahead(gym.make("EH-Cabinet-v0"))
        env.asked = asked
        return ElasticTimeLimit(env, FixedHorizon(4), record=False)

    envs = ThreadVectorEnv([make] * 2)
    arguments: dict[str, Any] = {"temperature": 1.0, "max_action_tokens": 6}
    rollout(envs, TransformersSampler(trained.model), trained.chat, requests(5), Rules(**arguments))
    tasks = [r.task_id for r in requests(5)]
    assert asked[0] == tasks[2:4]  # after the first two have begun, as many as there are slots
    assert asked[-1] == []
    envs.envs[0].unwrapped.asked.clear()
    announce(envs, ["a", "b", "c"])
    assert asked == [["a", "b"]]
    envs.close()
