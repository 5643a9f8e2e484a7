"""Episodes whose earlier thoughts leave the conversation (`--reasoning strip`), with real samplers and a real update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from quiet_run import rows_of_run
from small_model import of_written, plain_logprobs

import eh_gym  # noqa: F401 - registers the environments
from harness.evaluation.play import evaluation_requests, play_policy
from harness.policy.fresh import fresh_qwen2
from harness.policy.policy import Policy, load_policy
from harness.policy.shape import ModelShape
from harness.rollout.environment import Environments
from harness.sampling.transformers import TransformersSampler
from harness.sampling.vllm import VLLMSampler
from harness.settings.grpo import GRPOConfig
from harness.settings.warm_start import WarmStart
from harness.types.rules import Rules
from harness.types.sampler import Sampler
from harness.types.trajectory import Trajectory

# As Qwen3.5's and DeepSeek-R1's: the template begins a thought, and leaves it out of earlier replies.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
THOUGHT, ACTION = 6, 16  # tokens at most; the thought is closed for the model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that reads bytes."""
    tokenizer = byte_tokenizer(TEMPLATE, ["<think>", "</think>"])
    shape = ModelShape(len(tokenizer), 64, 64, 2, 2, 1, tied=True, positions=4096)
    model = fresh_qwen2(shape, eos_id=tokenizer.eos_token_id, initializer_range=0.3)
    made = tmp_path_factory.mktemp("thinker")
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    return load_policy(folder, strip_reasoning=True)


def play(sampler: Sampler, policy: Policy) -> list[Trajectory]:
    environments = Environments("EH-Cabinet-v0", {"split": "train"}, slots=2, threads=0)
    task = gym.make("EH-Cabinet-v0", split="train").unwrapped.task_ids[:1]  # type: ignore[attr-defined]
    rules = Rules(1.0, ACTION, max_reasoning_tokens=THOUGHT)
    return play_policy(environments, sampler, policy.chat, evaluation_requests(task, 2, seed=0), rules, horizon=3)


def check(policy: Policy, played: list[Trajectory]) -> None:
    """Every token was sampled after exactly the tokens that its sequence has before it, and is scored after them."""
    sequences = [sequence for trajectory in played for sequence in trajectory.sequences]
    assert [len(trajectory.sequences) for trajectory in played] == [3, 3]
    batch = policy.batch(sequences)
    with torch.no_grad():
        scored, _ = policy.score(batch, 1.0)
    for sequence, row, mask in zip(sequences, scored, batch.action_mask, strict=True):
        wrote = of_written(plain_logprobs(policy.model, sequence.ids), sequence)
        assert len(wrote) > THOUGHT
        assert of_written(sequence.logprobs, sequence) == pytest.approx(wrote, abs=3e-4)
        assert row[mask].tolist() == pytest.approx(wrote, abs=3e-4)
    for trajectory in played:
        last = policy.chat.text(trajectory.ids)
        assert last.count("<think>") == 1  # of three thoughts
        assert all(turn.reasoning_tokens >= THOUGHT for turn in trajectory.turns)
    # The prompt that both episodes of the task begin with is in the row once.
    prompt = played[0].sequences[0].action_mask.index(1)
    shared = prompt - len(policy.tokenizer.encode("<|im_start|>assistant\n<think>\n"))
    total = sum(len(sequence.ids) for sequence in sequences)
    assert batch.ids.numel() <= total - (len(sequences) - 1) * shared


def test_transformers_samples_what_a_plain_forward_pass_scores(policy: Policy) -> None:
    policy.model.eval()
    check(policy, play(TransformersSampler(policy.model), policy))


def test_vllm_samples_what_a_plain_forward_pass_scores(real_vllm: None, policy: Policy) -> None:
    policy.model.eval()
    check(policy, play(VLLMSampler(policy.model, policy.tokenizer, max_context=2048), policy))


def test_a_run_trains_on_it(folder: Path, tmp_path: Path) -> None:
    """The KL term puts every episode into the loss, whatever its reward."""
    few: dict[str, Any] = {
        "updates": 1,
        "tasks_per_update": 1,
        "group_size": 2,
        "k0": 3,
        "k_max": 3,
        "wrapper": "fixed",
    }
    lengths = {"max_action_tokens": ACTION, "max_reasoning_tokens": THOUGHT, "tokens_per_microbatch": 1500}
    config = GRPOConfig(
        model=str(folder),
        reasoning="strip",
        kl_coef=0.1,
        rollout="lockstep",
        eval_tasks=0,
        env_threads=0,
        warm_start=WarmStart(episodes=0),
        out=tmp_path / "run",
        **few,
        **lengths,
    )
    [row] = rows_of_run(config)
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "episodes" / "update-000000.jsonl").read_text().splitlines()
    ]
    assert row["train/logp_difference_max"] < 1e-3
    assert row["train/episodes_in_loss"] == 2
    assert row["train/tokens_in_loss"] == row["rollout/action_tokens"] == sum(line["action_tokens"] for line in lines)
    assert row["tokens/update"] == sum(line["tokens"] for line in lines)
    for line in lines:
        begun = [turn["prompt_tokens"] for turn in line["turns"]]
        assert begun[0] == 0
        assert line["prompt_tokens"] < begun[1] < begun[2]
        steps = sum(
            turn["action_tokens"] + turn["closing_tokens"] + turn["observation_tokens"] for turn in line["turns"]
        )
        assert line["tokens"] == line["prompt_tokens"] + sum(begun) + steps
