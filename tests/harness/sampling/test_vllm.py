"""vLLM in the trainer's process, beyond what every sampler does. Skipped where vLLM is not installed."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from harness.grpo import train
from harness.policy.lora import add_lora
from harness.run.display import Display
from harness.sampling.vllm import VLLMSampler
from harness.settings.grpo import GRPOConfig
from harness.types.sampler import Sampler, SampleRequest, sample_all

Ask = Callable[..., SampleRequest]
Forward = Callable[..., list[float]]
Made = Callable[[str], tuple[Qwen2ForCausalLM, Sampler]]


@pytest.mark.parametrize("kind", ["vllm", "vllm-untied"])
def test_the_engine_has_its_own_weights(made: Made, kind: str, ask: Ask, forward_logprobs: Forward) -> None:
    """The optimizer writes into the policy's tensors; the engine may see that only in `weights_changed`."""
    model, sampler = made(kind)
    before = copy.deepcopy(model)
    sampler.weights_changed()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
    sample = sample_all(sampler, [ask(0, [1, 2, 3])])[0]
    assert sample.logprobs == pytest.approx(forward_logprobs(before, [1, 2, 3], sample.ids), abs=1e-4)
    model.load_state_dict(before.state_dict())
    sampler.end_session(0)


def test_adapters_come_merged_into_the_weights_that_they_adapt(
    made: Made, tokenizer: PreTrainedTokenizerFast, ask: Ask, forward_logprobs: Forward
) -> None:
    pytest.importorskip("peft")
    made("vllm")
    model = copy.deepcopy(made("transformers")[0])
    add_lora(model, 4, seed=0)
    sampler = VLLMSampler(model, tokenizer)
    try:
        adapters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(adapters, lr=0.05)
        prompt, first = [1, 2, 3], sample_all(sampler, [ask(0, [1, 2, 3])])[0]
        assert first.logprobs == pytest.approx(forward_logprobs(model, prompt, first.ids), abs=1e-3)
        for _ in range(2):
            ids = torch.arange(12)[None]
            model.train()(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            old = forward_logprobs(model, prompt, first.ids)
            assert max(abs(a - b) for a, b in zip(old, first.logprobs, strict=True)) > 0.05, "the step is to be seen"
            sampler.weights_changed()
            sample = sample_all(sampler, [ask(1, prompt, seed=1)])[0]
            assert sample.logprobs == pytest.approx(forward_logprobs(model, prompt, sample.ids), abs=1e-3)
            sampler.end_session(1)
    finally:
        sampler.end_session(0)


def test_torch_is_left_as_it_was(made: Made) -> None:
    made("vllm")
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_two_workers_may_share_the_model(
    made: Made,
    tokenizer: PreTrainedTokenizerFast,
    ask: Ask,
    forward_logprobs: Forward,
) -> None:
    made("vllm")
    config = copy.deepcopy(made("transformers")[0].config)
    config.num_key_value_heads = 2
    torch.manual_seed(3)
    model = Qwen2ForCausalLM(config)
    sampler = VLLMSampler(model, tokenizer, tensor_parallel=2)
    for version in range(3):
        sample = sample_all(sampler, [ask(version, [1, 2, 3])])[0]
        assert sample.logprobs == pytest.approx(forward_logprobs(model, [1, 2, 3], sample.ids), abs=1e-4)
        assert sample.policy_version == version
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.8)
        sampler.weights_changed()


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 8, "lora_handover": "adapters", "learning_rate": 3e-3}])
def test_training_samples_from_the_policy_that_it_trains(
    made: Made, quick: GRPOConfig, tmp_path: Path, changes: dict[str, Any]
) -> None:
    made("vllm")
    config = dataclasses.replace(quick, sampler="vllm", updates=3, run_dir=tmp_path / "run", **changes)
    (tmp_path / "run").mkdir()
    train(config, tmp_path / "run", Display(Console(quiet=True)))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    trained_on = [row for row in rows if row["train/episodes_in_loss"]]
    assert len(trained_on) > 1
    assert all(0 < row["train/logp_difference_max"] < 1e-3 for row in trained_on)
