"""An agent's episodes are those of the environment that it plays: the same tokens, lengths and rewards, to the last bit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cabinet_agent
import gymnasium as gym
import pytest

import eh_gym
from harness.agents.env import AgentEnv
from harness.policy.policy import Policy
from harness.rollout.rollout import rollout
from harness.sampling.transformers import TransformersSampler
from harness.types.rules import EpisodeRequest, Rules
from harness.types.trajectory import Trajectory

TASKS = [f"train-{i:06d}" for i in range(6)]
REQUESTS = [EpisodeRequest(task, group, 100 * group + i) for group, task in enumerate(TASKS) for i in range(2)]
AGENTS = [cabinet_agent.play, cabinet_agent.play_async, f"{sys.executable} {cabinet_agent.__file__}"]


def played(make: Callable[[], gym.Env[Any, Any]], policy: Policy, *, k: int, slots: int = 6) -> list[Trajectory]:
    def limited() -> gym.Env[Any, Any]:
        return eh_gym.ElasticTimeLimit(make(), eh_gym.FixedHorizon(k), record=False)

    envs = eh_gym.ThreadVectorEnv([limited] * slots)
    try:
        sampler = TransformersSampler(policy.model)
        return rollout(envs, sampler, policy.chat, REQUESTS, Rules(1.0, 6, mode="lockstep"))
    finally:
        envs.close()


def content(t: Trajectory) -> tuple[Any, ...]:
    kept = [(turn.action, turn.action_tokens, turn.observation_tokens, turn.cut) for turn in t.turns]
    return t.task_id, t.ids, t.action_mask, t.logprobs, t.versions, t.reward, t.success, t.end, t.horizon, kept


@pytest.mark.parametrize("agent", AGENTS, ids=["function", "async", "command"])
def test_an_agent_that_plays_a_cabinet_has_the_cabinets_episodes(agent: Any, trained: Policy) -> None:
    tasks = [{"id": task} for task in TASKS]
    of_env = played(lambda: gym.make("EH-Cabinet-v0"), trained, k=9)
    of_agent = played(lambda: AgentEnv(agent, tasks), trained, k=9)
    assert {t.end for t in of_env} == {"terminated", "horizon"}
    assert [content(t) for t in of_agent] == [content(t) for t in of_env]
