"""Packed attention against one dense mask over the whole row, which says who sees whom."""

from __future__ import annotations

import inspect
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, FalconMambaConfig, Qwen2Config, Qwen3NextConfig

from harness.policy.attention import PACKED, Segments, can_pack, packed_attention

LENGTHS, PARENTS = (5, 3, 1, 7, 4, 2), (-1, 0, 0, -1, -1, 4)
HEADS, KV_HEADS, DIM = 4, 2, 8


def dense_mask(window: int | None) -> Tensor:
    """bool [T, T], token by token."""
    bounds = list(pairwise(torch.tensor([0, *LENGTHS]).cumsum(0).tolist()))
    mask = torch.zeros(sum(LENGTHS), sum(LENGTHS), dtype=torch.bool)
    for (start, stop), parent in zip(bounds, PARENTS, strict=True):
        history = list(range(*bounds[parent])) if parent >= 0 else []
        for token in range(start, stop):
            history.append(token)
            mask[token, history[-window:] if window else history] = True
    return mask


def inputs(device: str = "cpu", dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = [(1, heads, sum(LENGTHS), DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return [torch.randn(s, generator=g, dtype=torch.float64).to(device, dtype).requires_grad_() for s in shapes]


def check(query: Tensor, key: Tensor, value: Tensor, window: int | None, tolerance: float) -> None:
    segments = Segments(LENGTHS, PARENTS, query.device)
    module = torch.nn.Module()
    found, _ = packed_attention(module, query, key, value, None, scaling=0.4, sliding_window=window, segments=segments)
    right = scaled_dot_product_attention(
        *(x.double() for x in (query, key, value)),
        attn_mask=dense_mask(window).to(query.device),
        scale=0.4,
        enable_gqa=True,
    )
    right = right.transpose(1, 2)
    assert_close(found.double(), right, rtol=tolerance, atol=tolerance)
    weights = torch.arange(right.numel(), device=right.device).view_as(right).cos()
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), (query, key, value)),
        torch.autograd.grad((right * weights).sum(), (query, key, value)),
        strict=True,
    ):
        assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_each_token_sees_its_own_episode_and_nothing_later(window: int | None) -> None:
    check(*inputs(), window, 1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 3])
def test_one_kernel_for_all_segments_does_the_same(window: int | None) -> None:
    check(*inputs("cuda", torch.bfloat16), window, 0.03)


def test_without_segments_it_is_sdpa_which_does_not_see_padding() -> None:
    """transformers gave this attention no mask, so that `generate` attended to the padding of a batch of prompts."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(vocab_size=50, num_key_value_heads=2, initializer_range=0.3, **shape)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    ids = torch.tensor([[0, 0, 0, 5, 6, 7], [8, 9, 10, 11, 12, 13]])
    masks = None, (ids > 0).long()
    expected = [model(ids, attention_mask=mask).logits[:, -1] for mask in masks]
    model.set_attn_implementation(PACKED)
    for mask, right in zip(masks, expected, strict=True):
        assert_close(model(ids, attention_mask=mask).logits[:, -1], right, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(*expected, atol=1e-2)  # the mask does something
    assert PACKED not in str(model.config.to_dict())  # nobody else would know the name


def test_models_with_a_state_of_their_own_are_not_packed() -> None:
    shape = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}
    with torch.device("meta"):
        models = [
            AutoModelForCausalLM.from_config(config)
            for config in (
                Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=2),
                FalconMambaConfig(**shape),
                Qwen3NextConfig(**shape, num_attention_heads=2, num_key_value_heads=2, num_experts=2),
            )
        ]
    assert [can_pack(model) for model in models] == [True, False, False]


def test_on_a_cpu_heads_that_share_keys_become_queries() -> None:
    """Sampling with a mask: SDPA would write a copy of the keys for each head, and read that."""
    g = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, heads, n, DIM, generator=g, dtype=torch.float64).requires_grad_()
        for heads, n in ((HEADS, 2), (KV_HEADS, 7), (KV_HEADS, 7))
    )
    mask = torch.arange(7) <= torch.tensor([[3, 4], [5, 6], [0, 1]])[:, None, :, None]
    found, _ = packed_attention(torch.nn.Module(), query, key, value, mask, scaling=0.4)
    right = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.4, enable_gqa=True).transpose(1, 2)
    assert_close(found, right)
    weights = torch.arange(right.numel()).view_as(right).cos()
    for x in (query, key, value):
        ours, theirs = (torch.autograd.grad((o * weights).sum(), x, retain_graph=True)[0] for o in (found, right))
        assert_close(ours, theirs)


def test_torch_s_varlen_kernel_takes_what_it_is_given() -> None:
    """torch 2.11's had no enable_gqa: a TypeError on every GPU in bfloat16."""
    names = list(inspect.signature(varlen_attn).parameters)
    assert names[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert {"scale", "window_size", "enable_gqa"} <= set(names)
