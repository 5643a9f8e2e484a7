"""A model of any shape with random weights, with nothing to download."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

__all__ = ["fresh_qwen2"]


def fresh_qwen2(
    vocab: int,
    width: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    *,
    positions: int,
    eos_id: int,
    tied: bool = True,
    pad_id: int | None = None,
    initializer_range: float = 0.02,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Qwen2ForCausalLM:
    """Makes a Qwen2 of any shape with random weights on `device`; the same seed gives the same weights.

    Args:
        vocab: The number of rows of the embedding.
        width: The width of the hidden states.
        ffn: The width of the feed-forward layers.
        layers: The number of layers.
        heads: The number of attention heads.
        kv_heads: The number of heads of the keys and values.
        positions: The longest episode in tokens.
        eos_id: The token that ends a text.
        tied: Whether the output layer shares its weights with the embedding.
        pad_id: The token that pads.
        initializer_range: The standard deviation of the weights.
        seed: Draws the weights.
        device: The device of the weights.
        dtype: The type of the weights.
    """
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        initializer_range=initializer_range,
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
    )
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        model: Qwen2ForCausalLM = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        return model
