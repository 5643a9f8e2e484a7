"""Episodes of one step, scored by the policy that wrote them; and one update."""

import copy

import torch
from glossary import check_glossary

from harness.machine.ranks import ALONE
from harness.model.policy import Policy
from harness.settings.grpo import from_recipe
from harness.settings.section import changed
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn
from harness.update.update import update_policy


def copied(policy):
    return Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.chat)


def one_step(policy, group, reply, *, reward, end="terminated"):
    t = Trajectory(f"t{group}", group, reward=reward, success=reward > 0, end=end)
    t.add_prompt(policy.chat.prompt_ids("", "start c"))
    ids = policy.chat.reply_ids(reply)
    t.add_sample(Sample(ids, [0.0] * len(ids), "stop", 0))
    t.turns = [Turn(reply)]
    with torch.no_grad():
        t.logprobs[-len(ids) :] = policy.score(policy.batch([t]), 1.0)[0][0].tolist()
    return t


def update(policy, optimizer, trajectories, *, reference=None, ranks=ALONE, **changes):
    config = changed(from_recipe("quickstart"), **{"minibatches": 1, **changes})
    how = {"temperature": 1.0, "seed": 0, "reference": reference, "ranks": ranks}
    metrics = update_policy(policy, optimizer, trajectories, config.loss, config.optimizer, **how)
    check_glossary(metrics)
    return metrics
