"""Sliding windows: the sampler and the trainer's packed rows against each model's own plain forward pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from small_model import forward_logprobs
from transformers import (
    AutoModelForCausalLM,
    FalconMambaConfig,
    Gemma2Config,
    Gemma3TextConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from eh_gym.errors import ConfigError
from harness.model.attention import PACKED, Segments, attention_windows, can_pack, no_mask
from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import SampleRequest, sample_all

WINDOW = 5
SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "sliding_window": WINDOW,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
# Of each config class: its own arguments, and the windows of its layers.
MODELS: dict[type[PreTrainedConfig], tuple[dict[str, Any], list[int | None]]] = {
    Qwen2Config: ({"use_sliding_window": True, "max_window_layers": 1}, [None, WINDOW, WINDOW]),
    Qwen3Config: ({"use_sliding_window": True, "max_window_layers": 2, "head_dim": 8}, [None, None, WINDOW]),
    Gemma2Config: ({"layer_types": MIXED, "head_dim": 8}, [WINDOW, None, WINDOW]),
    Gemma3TextConfig: ({"layer_types": MIXED, "head_dim": 8}, [WINDOW, None, WINDOW]),
}
UNPACKED = {Gemma2Config}  # soft caps, which SDPA does not have


def new_model(kind: type[PreTrainedConfig], **changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(kind(**{**SHAPE, **changes})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_samples_have_the_log_probabilities_of_a_plain_forward_pass(kind: type[PreTrainedConfig]) -> None:
    changes, windows = MODELS[kind]
    model = new_model(kind, **changes)
    assert attention_windows(model.config) == windows
    sampler = TransformersSampler(model)
    prompts = [
        [3, 4, 5],
        list(range(6, 20)),
        list(range(5, 45)),
        list(range(5, 45)),
    ]  # the last two share what they begin with
    for _ in range(2):
        requests = [SampleRequest(i, prompt, max_tokens=6, seed=i) for i, prompt in enumerate(prompts)]
        for i, sample in enumerate(sample_all(sampler, requests)):
            assert sample.logprobs == pytest.approx(forward_logprobs(model, prompts[i], sample.ids), abs=1e-4)
            prompts[i] += [*sample.ids, 7, 8]


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_packed_rows_have_the_log_probabilities_of_a_plain_forward_pass(kind: type[PreTrainedConfig]) -> None:
    model = new_model(kind, **MODELS[kind][0])
    assert can_pack(model) == (kind not in UNPACKED)
    if kind in UNPACKED:
        return
    packed = copy.deepcopy(model)
    packed.set_attn_implementation(PACKED)
    begin, ends = list(range(3, 12)), [[20, 21, 22], [30, 31, 32, 33]]
    row = [*begin, *ends[0], *ends[1], *begin]
    segments = Segments([9, 3, 4, 9], [-1, 0, 0, -1], torch.device("cpu"))
    positions = torch.tensor([[*range(9), *range(9, 12), *range(9, 13), *range(9)]])
    with torch.no_grad():
        output = packed.base_model(
            input_ids=torch.tensor([row]),
            position_ids=positions,
            use_cache=False,
            segments=segments,
            attention_mask=no_mask(positions.device),
        ).last_hidden_state[0]
        for start, stop, episode in ((9, 12, begin + ends[0]), (12, 16, begin + ends[1]), (16, 25, begin)):
            plain = model.base_model(input_ids=torch.tensor([episode]), use_cache=False).last_hidden_state[0]
            torch.testing.assert_close(output[start:stop], plain[start - stop :], rtol=1e-4, atol=1e-4)


def test_a_window_that_is_switched_off_is_not_used() -> None:
    assert attention_windows(Qwen2Config(**SHAPE, use_sliding_window=False)) == [None] * 3


def test_layers_other_than_attention_are_refused() -> None:
    model = new_model(FalconMambaConfig)
    with pytest.raises(ConfigError, match=r"attention.*--sampler vllm"):
        TransformersSampler(model)
