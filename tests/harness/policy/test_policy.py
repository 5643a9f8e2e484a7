"""Loading a model: what is turned off in it, and what is said of damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Phi3Config

from eh_gym.errors import ConfigError
from harness.policy.policy import Policy, load_policy
from harness.policy.rotary import settle_frequencies


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


def test_damaged_weights_are_an_error_of_one_line(folder: Path) -> None:
    change(folder, hidden_size=32)
    with pytest.raises(ConfigError, match=r"damaged, copy or download"):
        load_policy(folder)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"header too small"):
        load_policy(folder)


@pytest.mark.parametrize("max_context", [0, 64])
@torch.no_grad()
def test_longrope_has_one_set_of_frequencies_whatever_came_before(max_context: int) -> None:
    """transformers chose the set by the longest text of each forward pass, so the scores of a short episode moved by 1 nat."""
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "pad_token_id": 0}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 4.0, 8.0]}
    limits = {"original_max_position_embeddings": 64, "max_position_embeddings": 256}
    config = Phi3Config(**sizes, **limits, num_attention_heads=4, rope_parameters={**rope, **limits})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    short, long = torch.arange(3, 33)[None], torch.arange(3, 93)[None]
    kept = short if max_context else long  # whose set is taken
    by_transformers = model(kept).logits
    settle_frequencies(model, max_context)
    torch.testing.assert_close(model(kept).logits, by_transformers)
    before = model(short).logits
    model(long)
    assert torch.equal(model(short).logits, before)
