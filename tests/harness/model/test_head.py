"""Log-probabilities and entropies in chunks, against log_softmax over whole logits: values and gradients."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from harness.model import head as head_module
from harness.model.head import Head, float32_head, token_scores

N, H, V = 11, 6, 17
HEADS = {"plain": {}, "scaled and capped": {"scale": 1.7, "softcap": 3.0}}


def head_of(kind, dtype=torch.float64):
    g = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(n, generator=g, dtype=dtype) for n in ((N, H), (V, H)))
    return hidden.requires_grad_(), torch.randint(V, (N,), generator=g), Head(weight.requires_grad_(), **HEADS[kind])


def plain_scores(hidden, targets, head, temperature):
    logits = hidden @ head.weight.T
    logits = logits * head.scale
    if head.softcap is not None:
        logits = torch.tanh(logits / head.softcap) * head.softcap
    logp = (logits / temperature).log_softmax(1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(1)


@pytest.mark.parametrize("chunk", [4, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("kind", HEADS)
def test_chunks_of_any_size_give_the_plain_values_and_gradients(kind, temperature, chunk, monkeypatch):
    monkeypatch.setattr(head_module, "_chunk_tokens", lambda *_: chunk)
    hidden, targets, head = head_of(kind)
    weights = torch.randn(N, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected, expected_entropy = plain_scores(hidden, targets, head, temperature)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), (hidden, head.weight))
    logp, entropy = token_scores(hidden, targets, head, temperature)
    gradients = torch.autograd.grad((logp * weights).sum(), (hidden, head.weight))
    assert_close(logp, expected)
    assert_close(entropy, expected_entropy)
    assert not entropy.requires_grad
    for found, right in zip(gradients, expected_gradients, strict=True):
        assert_close(found, right)


def test_bfloat16_is_scored_in_float32_and_gets_bfloat16_gradients(monkeypatch):
    monkeypatch.setattr(head_module, "_chunk_tokens", lambda *_: 1)
    g = torch.Generator().manual_seed(2)
    hidden, weight = (torch.randn(n, generator=g).to(torch.bfloat16).requires_grad_() for n in ((512, 32), (50, 32)))
    targets = torch.randint(50, (512,), generator=g)
    logp, entropy = token_scores(hidden, targets, Head(weight), 1.0)
    assert (logp.dtype, entropy.dtype) == (torch.float32, torch.float32)
    exact = (hidden.double() @ weight.double().T).log_softmax(1).gather(1, targets[:, None]).squeeze(1)
    assert_close(logp.double(), exact, rtol=0, atol=1e-4)  # with rounded logits it would be off by 0.1
    logp.sum().backward()
    whole = torch.autograd.grad(exact.sum(), weight)[0]
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
    assert (weight.grad - whole).norm() < 0.006 * whole.norm()  # 0.004; summed in bfloat16 512 chunks are off by 0.0095


@pytest.mark.parametrize(("dtype", "made"), [(torch.bfloat16, True), (torch.float32, False), (torch.float64, False)])
def test_a_copy_of_the_head_is_made_of_a_narrower_one(dtype, made):
    layer = torch.nn.Linear(H, V, bias=False, dtype=dtype)
    copy = float32_head(SimpleNamespace(get_output_embeddings=lambda: layer))
    assert (copy is not None) is made
    if copy is not None:
        assert_close(copy, layer.weight.float())
