"""Loading a model: what is turned off in it, and what is said of damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Phi3Config, PreTrainedConfig, PreTrainedModel

from eh_gym.errors import ConfigError
from harness.policy.attention import PACKED
from harness.policy.batch import pack
from harness.policy.policy import Policy, load_policy, score_batch
from harness.policy.rotary import settle_frequencies
from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import SampleRequest, sample_all
from harness.types.trajectory import Trajectory


@pytest.fixture
def folder(trained: Policy, tmp_path: Path) -> Path:
    trained.save(tmp_path)
    return tmp_path


def change(folder: Path, **values: object) -> None:
    """Changes the model's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_the_trainer_scores_without_dropout(folder: Path) -> None:
    """In training mode the model dropped attention, so its log-probabilities were not the sampler's."""
    change(folder, attention_dropout=0.5)
    model = load_policy(folder).model.train()
    assert {layer.self_attn.attention_dropout for layer in model.base_model.layers} == {0.0}


def tiny_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model with larger random weights than usual, so that a wrong position or expert shows."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.15)
    model.set_attn_implementation(PACKED)
    return model


SIZES = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


def episode(prompt: int, group: str) -> Trajectory:
    trajectory, ids = Trajectory("task", group), np.random.default_rng(prompt).integers(3, 97, prompt + 10).tolist()
    trajectory.add_prompt(ids[:prompt])
    trajectory.ids += ids[prompt:]
    trajectory.action_mask += [1] * 10
    trajectory.logprobs += [0.0] * 10
    return trajectory


def scores(model: PreTrainedModel, *episodes: Trajectory) -> torch.Tensor:
    """The log-probabilities of the first episode's actions."""
    with torch.no_grad():
        return score_batch(model, pack(list(episodes)), 1.0)[0][0][: sum(episodes[0].action_mask)]


ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [1.5, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("max_context", [0, 64])
def test_longrope_has_one_set_of_frequencies_whatever_is_in_the_batch(max_context: int) -> None:
    """transformers chose the set by the longest text of each forward pass, so the scores of a short episode moved by 1 nat."""
    model = tiny_model(Phi3Config(**SIZES, rope_parameters=ROPE, original_max_position_embeddings=64))
    short, long = episode(20, "a"), episode(80, "b")
    by_transformers = {"short": scores(model, short), "long": scores(model, long)}
    settle_frequencies(model, max_context)
    torch.testing.assert_close(scores(model, short), scores(model, short, long), rtol=0, atol=1e-5)
    kept = by_transformers["short"] if max_context else by_transformers["long"]
    torch.testing.assert_close(scores(model, short if max_context else long), kept, rtol=0, atol=1e-5)
    sampler, grown = TransformersSampler(model), Trajectory("task", "c")
    grown.add_prompt(short.ids)
    for seed in range(3):  # from 30 to 72 tokens
        [sample] = sample_all(sampler, [SampleRequest(0, grown.ids, 12, seed=seed)])
        grown.add_sample(sample)
        grown.add_prompt([5, 6, 7])
    sampled = torch.tensor([p for p, own in zip(grown.logprobs, grown.action_mask, strict=True) if own])
    torch.testing.assert_close(scores(model, grown), sampled, rtol=0, atol=1e-4)


def test_damaged_weights_are_an_error_of_one_line(folder: Path) -> None:
    change(folder, hidden_size=32)
    with pytest.raises(ConfigError, match=r"damaged, copy or download"):
        load_policy(folder)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"header too small"):
        load_policy(folder)
