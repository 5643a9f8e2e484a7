"""Episodes of one step, scored by the policy that wrote them."""

from __future__ import annotations

import copy
from typing import Any

import torch

from harness.model.policy import Policy
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn


def copied(policy: Policy) -> Policy:
    """The same policy with weights of its own."""
    return Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.chat)


def one_step(policy: Policy, group: int, reply: str, *, reward: float, end: Any = "terminated") -> Trajectory:
    """An episode with the log-probabilities that the policy gives it now."""
    t = Trajectory(f"t{group}", group, reward=reward, success=reward > 0, end=end)
    t.add_prompt(policy.chat.prompt_ids("", "start c"))
    ids = policy.chat.reply_ids(reply)
    t.add_sample(Sample(ids, [0.0] * len(ids), "stop", 0))
    t.turns = [Turn(reply, "", cut=False, malformed=False)]
    with torch.no_grad():
        t.logprobs[-len(ids) :] = policy.score(policy.batch([t]), 1.0)[0][0].tolist()
    return t
