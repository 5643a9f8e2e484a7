"""A model of any shape with random weights, with nothing to download."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from harness.policy.shape import ModelShape

__all__ = ["fresh_qwen2"]


def fresh_qwen2(
    shape: ModelShape,
    *,
    eos_id: int,
    pad_id: int | None = None,
    initializer_range: float = 0.02,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Qwen2ForCausalLM:
    """Makes a Qwen2 of any shape with random weights on `device`; the same seed gives the same weights."""
    config = Qwen2Config(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=shape.tied,
        initializer_range=initializer_range,
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
    )
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        model: Qwen2ForCausalLM = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        return model
