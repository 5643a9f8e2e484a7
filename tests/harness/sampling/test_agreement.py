"""Sampler and trainer compute what a model's own forward pass does.

A model type that no test has is compared for the sampler before any work, and refused where it differs.
"""

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    FalconMambaConfig,
    GPTNeoConfig,
    HeliumConfig,
    Qwen2Config,
)

from eh_gym.errors import ConfigError
from harness.model.attention import PACKED, attention_windows, choose_attention
from harness.model.batch import collate, pack
from harness.model.policy import score_batch
from harness.sampling import agreement
from harness.sampling.agreement import TESTED, check_agreement
from harness.sampling.transformers import TransformersSampler
from harness.types.trajectory import TokenSequence

SIZES = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
WINDOWS = {
    "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"] * 2,
    "num_key_value_heads": 2,
}
WINDOWED = ("gemma2", "gemma3_text", "qwen2", "qwen3")


def model_of(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    choose_attention(model)
    return model


def helium():
    return model_of(HeliumConfig(**SIZES, head_dim=16, num_key_value_heads=2))


@torch.no_grad()
def trainer_differs_by(model):
    used = model.config._attn_implementation
    small = agreement._small_copy(model, "sdpa" if used == PACKED else used)
    rows = [torch.randint(98, (n,)).tolist() for n in (60, 64)]
    right = torch.cat([agreement._scores(small, row) for row in rows])
    small.set_attn_implementation(used)
    small.train()  # in which some routers draw experts at random
    sequences = [TokenSequence(0, row, [0] + [1] * (len(row) - 1), [0.0] * len(row)) for row in rows]
    batch = pack(sequences) if used == PACKED else collate(sequences, pad_id=0)
    logp, _ = score_batch(small, batch, 1.0)
    return (torch.cat([scores[: len(row) - 1] for scores, row in zip(logp, rows, strict=True)]) - right).abs().max()


@pytest.mark.parametrize(
    ("kind", "more"), [*((kind, {}) for kind in sorted(TESTED)), *((kind, WINDOWS) for kind in WINDOWED)]
)
def test_the_tested_types_agree_and_are_not_compared_again(kind, more, monkeypatch):
    config = AutoConfig.for_model(
        kind, **{**SIZES, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, **more}
    )
    model = model_of(config)
    if more:
        assert attention_windows(model.config) == [model.config.sliding_window, None, model.config.sliding_window] * 2
    assert model.config._attn_implementation == ("eager" if kind == "gemma2" else PACKED)  # soft caps
    with monkeypatch.context() as patch:
        patch.setattr(agreement, "TESTED", frozenset())
        assert check_agreement(model) == ""
    assert trainer_differs_by(model) < 2e-3
    monkeypatch.setattr(agreement, "_small_copy", None)
    assert check_agreement(model) == ""


def test_what_differs_from_the_models_own_forward_pass_is_refused():
    # Its local layers are not called so, and the sampler gave them no window.
    config = GPTNeoConfig(**SIZES, attention_types=[[["global", "local"], 3]])
    with pytest.raises(ConfigError, match=r"sampler.*gpt_neo.*nats"):
        check_agreement(model_of(config))


def test_the_comparison_draws_nothing_from_the_run_s_seeds():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert check_agreement(helium()) == ""
    assert torch.equal(torch.get_rng_state(), before)


def test_a_window_that_is_switched_off_is_not_used():
    assert attention_windows(Qwen2Config(**SIZES, sliding_window=5, use_sliding_window=False)) == [None] * 6


def test_layers_other_than_attention_are_refused():
    model = AutoModelForCausalLM.from_config(FalconMambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1))
    with pytest.raises(ConfigError, match=r"attention.*--sampler vllm"):
        TransformersSampler(model)
