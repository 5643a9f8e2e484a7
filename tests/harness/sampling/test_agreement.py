"""A model type that no test has is compared with its own forward pass before any work, and refused where it differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV32Config,
    GPTNeoConfig,
    HeliumConfig,
    MoshiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    xLSTMConfig,
)

from eh_gym.errors import ConfigError
from harness.policy.attention import PACKED, can_pack
from harness.sampling import agreement
from harness.sampling.agreement import TESTED, check_agreement

SIZES: dict[str, Any] = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}


def model_of(config: PreTrainedConfig) -> PreTrainedModel:
    """A model as `load_policy` leaves it, without weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if can_pack(model):
        model.set_attn_implementation(PACKED)
    return model


@pytest.mark.parametrize(
    ("config", "how", "named"),
    [
        # Its local layers are not called so, and the sampler gave them no window.
        (GPTNeoConfig(**SIZES, attention_types=[[["global", "local"], 2]]), {"trained": False}, "sampler.*gpt_neo"),
        (MoshiConfig(**SIZES, sliding_window=64), {"sampled": False}, "trainer.*moshi"),
        (MoshiConfig(**SIZES, sliding_window=64), {"trained": False}, "sampler.*moshi"),
        # A soft cap with a name of its own: too small a difference for the check of the output layer.
        (xLSTMConfig(**SIZES, num_heads=4, qk_dim_factor=1.0), {"sampled": False}, "trainer.*xlstm"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_what_differs_from_the_models_own_forward_pass_is_refused(
    config: PreTrainedConfig, how: dict[str, bool], named: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{named}.*nats"):
        check_agreement(model_of(config), **how)


def test_a_sampler_that_refuses_a_type_says_so_and_its_trainer_is_compared() -> None:
    sparse = model_of(DeepseekV32Config(**SIZES, num_key_value_heads=4, q_lora_rank=32))
    with pytest.raises(ConfigError, match=r"indexed_attention.*--sampler vllm"):
        check_agreement(sparse)
    assert check_agreement(sparse, sampled=False) == ""


def test_an_untested_type_that_agrees_is_taken_and_a_tested_one_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "helium" not in TESTED
    assert check_agreement(model_of(HeliumConfig(**SIZES, head_dim=16, num_key_value_heads=2))) == ""
    monkeypatch.setattr(agreement, "_small_copy", None)
    assert check_agreement(model_of(Qwen2Config(**SIZES, num_key_value_heads=2))) == ""


def test_a_type_of_which_no_small_copy_can_be_made_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise TypeError("it needs a picture")

    monkeypatch.setattr(agreement, "_small_copy", fails)
    assert "helium" in check_agreement(model_of(HeliumConfig(**SIZES, head_dim=16, num_key_value_heads=2)))


def test_the_comparison_draws_nothing_from_the_run_s_seeds() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_agreement(model_of(HeliumConfig(**SIZES, head_dim=16, num_key_value_heads=2)))
    assert torch.equal(torch.get_rng_state(), before)
