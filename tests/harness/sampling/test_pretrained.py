"""A real pretrained chat model through the harness: SmolLM2-135M-Instruct, both samplers, warm start, GRPO."""

import copy
import dataclasses
import io

import gymnasium as gym
import pytest
import torch
from rich.console import Console
from small_model import of_written, plain_logprobs
from smollm2 import smollm2_folder
from transformers import AutoModelForCausalLM

from harness.clone.clones import clone_expert
from harness.evaluation.play import evaluation_requests, play_policy
from harness.model.policy import Policy, load_policy
from harness.rollout.environment import Environments
from harness.sampling.transformers import TransformersSampler
from harness.sampling.vllm.engine import VLLMSampler
from harness.settings.grpo import from_recipe
from harness.settings.rollout import Rollout
from harness.settings.section import changed
from harness.settings.warm_start import WarmStart
from harness.terminal.display import Display

CABINET, BFCL = "EH-Cabinet-v0", "EH-BFCL-v0"
in_campaign = pytest.mark.campaign


@pytest.fixture(scope="session")
def smollm2():
    return load_policy(smollm2_folder())


@pytest.fixture
def trainable(smollm2):
    return Policy(copy.deepcopy(smollm2.model), smollm2.tokenizer, smollm2.chat)


def play(sampler, policy, env, *, episodes, steps):
    """Sampled episodes of the environment's first training task."""
    environments = Environments(env, {"split": "train"}, slots=4, threads=0)
    task = gym.make(env, split="train").unwrapped.task_ids[:1]
    requests = evaluation_requests(task, episodes, seed=0)
    return play_policy(environments, sampler, policy.chat, requests, Rollout(max_action_tokens=12), horizon=steps)


def right_logprobs(trajectory):
    """Those of the written tokens from transformers' own forward pass, without any of our code."""
    kernel = "eager" if len(trajectory.ids) < 1000 else "sdpa"  # eager takes a minute for 2,800
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder(), dtype=torch.float32, attn_implementation=kernel)
    return of_written(plain_logprobs(model, trajectory.ids), trajectory)


@torch.no_grad()
def packed_logprobs(policy, trajectories):
    policy.model.eval()
    batch = policy.batch(trajectories)
    logp, _ = policy.score(batch, 1.0)
    return [row[mask].tolist() for row, mask in zip(logp, batch.action_mask, strict=True)]


@pytest.mark.parametrize("env", [CABINET, pytest.param(BFCL, marks=in_campaign)])
def test_sampler_trainer_and_a_plain_forward_pass_agree(smollm2, env):
    """Three ways to the same numbers: sampled from a cache, packed with a shared prompt, and one plain pass."""
    assert smollm2.packs
    played = play(TransformersSampler(smollm2.model), smollm2, env, episodes=2, steps=2)
    assert all(sum(t.action_mask) >= 4 for t in played)
    packed = packed_logprobs(smollm2, played)
    for trajectory, scored in zip(played, packed, strict=True):
        plain = right_logprobs(trajectory)
        assert of_written(trajectory.logprobs, trajectory) == pytest.approx(plain, abs=3e-4)
        assert scored == pytest.approx(plain, abs=3e-4)


@pytest.mark.parametrize("env", [CABINET, BFCL])
def test_vllm_agrees_with_a_plain_forward_pass(real_vllm, smollm2, env):
    sampler = VLLMSampler(smollm2.model, max_context=2048)
    for trajectory in play(sampler, smollm2, env, episodes=2, steps=2):
        assert of_written(trajectory.logprobs, trajectory) == pytest.approx(right_logprobs(trajectory), abs=3e-4)


def test_adapters_learn_the_expert_and_become_part_of_the_clone(smollm2, trainable, own_cache):
    """With LoRA the optimizer has the adapters alone; what they learnt is then in the folder's weights."""
    start = WarmStart(
        episodes=4, max_optimal_steps=3, max_batches=2, loss_target=0.0, learning_rate=3e-3, batch_tokens=200
    )
    config = changed(from_recipe("quickstart"), model=str(smollm2_folder()), env=CABINET, lora_rank=4, eval_tasks=0)
    config = dataclasses.replace(config, warm_start=start)
    said = io.StringIO()
    env, display = gym.make(CABINET, split="train"), Display(Console(file=said, width=400))
    folder = clone_expert(config, env, trainable, "cpu", display, own_cache)
    assert {n for n, p in trainable.model.named_parameters() if p.requires_grad} == {
        n for n, _ in trainable.model.named_parameters() if ".lora_" in n
    }
    assert "after 2 batches of 4 demonstrations" in said.getvalue()
    before = dict(smollm2.model.named_parameters())
    cloned = load_policy(folder).model.named_parameters()
    moved = [name for name, p in cloned if not p.equal(before[name])]
    assert len(moved) == 7 * 30  # each matrix of each layer, and nothing else
