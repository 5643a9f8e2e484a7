"""Sliding windows: the sampler against each model's own plain forward pass. test_agreement.py has the trainer's rows."""

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
from harness.model.attention import attention_windows
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
    prompts = [[3, 4, 5], list(range(6, 20)), *(list(range(5, 45)) for _ in range(2))]  # two begin alike
    for _ in range(2):
        requests = [SampleRequest(i, prompt, max_tokens=6, seed=i) for i, prompt in enumerate(prompts)]
        for i, sample in enumerate(sample_all(sampler, requests)):
            assert sample.logprobs == pytest.approx(forward_logprobs(model, prompts[i], sample.ids), abs=1e-4)
            prompts[i] += [*sample.ids, 7, 8]


def test_a_window_that_is_switched_off_is_not_used() -> None:
    assert attention_windows(Qwen2Config(**SHAPE, use_sliding_window=False)) == [None] * 3


def test_layers_other_than_attention_are_refused() -> None:
    model = new_model(FalconMambaConfig)
    with pytest.raises(ConfigError, match=r"attention.*--sampler vllm"):
        TransformersSampler(model)
