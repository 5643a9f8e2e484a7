"""Model shapes: counted as transformers counts, and activations as autograd keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from eh_gym.errors import ConfigError
from harness.policy.attention import PACKED, Segments
from harness.policy.fresh import fresh_qwen2
from harness.policy.lora import add_lora
from harness.policy.shape import KNOWN, ModelShape, shape_of


def model_of(shape: ModelShape, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    if not shape.head_norms:
        return fresh_qwen2(shape, eos_id=2, dtype=dtype, device=device)
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.queries // shape.heads,
        tie_word_embeddings=shape.tied,
    )
    return Qwen3ForCausalLM(config).to(dtype)


@pytest.mark.parametrize("name", KNOWN)
def test_known_shapes_have_the_parameters_that_transformers_counts(name: str) -> None:
    with torch.device("meta"):
        model = model_of(KNOWN[name], device="meta")
    assert KNOWN[name].parameters == model.num_parameters()
    assert shape_of(f"Qwen/{name}-Instruct") == KNOWN[name]


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_a_folder_is_read(kind: str, tmp_path: Path) -> None:
    make, config = (Qwen2ForCausalLM, Qwen2Config) if kind == "qwen2" else (LlamaForCausalLM, LlamaConfig)
    wanted = config(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    wanted.save_pretrained(tmp_path)
    with torch.device("meta"):
        assert shape_of(str(tmp_path)).parameters == make(wanted).num_parameters()


def test_an_unknown_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Qwen2\.5-7B"):
        shape_of("someone/else")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ConfigError, match="model_type 'mamba'"):
        shape_of(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "mlp_bias": True}))
    with pytest.raises(ConfigError, match=r"model_type .llama. with mlp_bias"):
        shape_of(str(tmp_path))


def kept(shape: ModelShape, dtype: torch.dtype, rank: int, tokens: int) -> int:
    """Bytes that autograd keeps in a forward pass, weights left out."""
    model = model_of(shape, dtype)
    model.set_attn_implementation(PACKED)
    if rank:
        add_lora(model, rank, seed=0)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        model.base_model(
            input_ids=torch.zeros(1, tokens, dtype=torch.long),
            position_ids=torch.arange(tokens)[None],
            use_cache=False,
            segments=Segments([tokens], [-1], torch.device("cpu")),
        )
    return sum(t.untyped_storage().nbytes() for t in found.values())


@pytest.mark.parametrize(
    ("sizes", "norms", "dtype", "rank"),
    [
        ((64, 256, 4, 2), False, torch.float32, 0),
        ((64, 256, 4, 2), True, torch.bfloat16, 4),
        ((128, 192, 8, 8), True, torch.float32, 4),
        ((128, 192, 8, 8), False, torch.bfloat16, 0),
    ],
)
def test_a_layer_keeps_what_autograd_keeps(
    sizes: tuple[int, int, int, int], norms: bool, dtype: torch.dtype, rank: int
) -> None:
    width, ffn, heads, kv_heads = sizes
    three, four = (
        ModelShape(64, width, ffn, n, heads, kv_heads, tied=False, attention_bias=not norms, head_norms=norms)
        for n in (3, 4)
    )
    layer = (kept(four, dtype, rank, 64) - kept(three, dtype, rank, 64)) / 64
    assert layer == pytest.approx(four.layer_activation_bytes(dtype.itemsize, rank), rel=0.01)


def test_adapters_are_counted() -> None:
    shape = ModelShape(64, 64, 256, 3, 4, 2, tied=True)
    model = fresh_qwen2(shape, eos_id=2)
    add_lora(model, 4, seed=0)
    assert shape.lora_parameters(4) == sum(p.numel() for p in model.parameters() if p.requires_grad)
