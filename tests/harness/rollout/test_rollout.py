"""Rollouts of a real policy: one growing list of ids, K, the context, failing environments, and what timing may change."""

from typing import Any

import pytest

import eh_gym
from eh_gym import FixedHorizon
from harness.model.policy import Policy
from harness.rollout.rollout import rollout
from harness.sampling.transformers import TransformersSampler
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.trajectory import Trajectory


def requests(n: int, group: int = 2) -> list[EpisodeRequest]:
    return [EpisodeRequest(f"train-{i // group:06d}", i // group, seed=1000 + i) for i in range(n)]


BOTH = pytest.mark.parametrize("mode", ["streaming", "lockstep"])


def play(policy: Policy, n: int = 12, *, mode: Any, k: int = 12, slots: int = 12, threads: int | None = None) -> list[Trajectory]:
    envs = eh_gym.make_vec("EH-Cabinet-v0", slots, FixedHorizon(k), record=False, max_workers=threads)
    rules = Rollout(max_action_tokens=6, rollout=mode)
    try:
        return rollout(envs, TransformersSampler(policy.model), policy.chat, requests(n), rules)
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
