"""A model of any shape with random weights, with nothing to download."""

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM


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
    """Makes a Qwen2 of any shape with random weights. The same seed gives the same weights.

    `vocab` is the number of rows of the embedding, `positions` the longest episode in tokens, and `initializer_range`
    the standard deviation of the weights. `tied` shares the weights of the embedding with the output layer.
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
