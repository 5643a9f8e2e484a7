"""Computes log-probabilities and entropies from a model's last hidden states, without ever holding all logits in
memory.

All logits, [tokens, vocabulary] in float32, take 10 GB for 16k tokens and a vocabulary of 152k; their gradient takes as
much again. Here the output layer computes one chunk of tokens at a time, and the backward pass computes each chunk
again, a fourth matrix product.

Logits are float32 even if the model is narrower, here and in the samplers (docs/vllm.md, "Logits in float32").

Liger's fused kernels need only three products, but they need a GPU and return only their own loss. They give no
entropy, and no log-probability of a token with its gradient, which truncated importance weights and the KL term need.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from eh_gym.errors import ConfigError


@dataclass(frozen=True)
class Head:
    """How hidden states become logits: softcap tanh(scale hidden weight^T / softcap), or without a cap.

    Attributes:
        weight: [V, H], the weight of the output layer.
        scale: Cohere's ``logit_scale`` or Granite's 1 / ``logits_scaling``; 1 for other models.
        softcap: Gemma's ``final_logit_softcapping``; None for no cap.
    """

    weight: Tensor
    scale: float = 1.0
    softcap: float | None = None

    @staticmethod
    def of(model: PreTrainedModel) -> Head:
        config = model.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
        return Head(_output_layer(model).weight, scale, getattr(config, "final_logit_softcapping", None))

    def logits(self, hidden: Tensor) -> Tensor:
        """Turns hidden states, [N, H], into logits, [N, V], in float32 (float64 if `hidden` is float64)."""
        logits = _wide_linear(hidden, self.weight)
        if self.scale != 1:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits


def float32_head(model: PreTrainedModel) -> Tensor | None:
    """A float32 copy of the output layer's weight, for `float32_logits`; None in float32 and on a GPU, where no copy is
    needed.

    Without it, every pass makes a copy. With SmolLM2-135M in bfloat16 on one core, that took 60 of the 130 ms for a
    token, and 49 of the 458 ms for a token of 32 episodes each.
    """
    weight = _output_layer(model).weight
    return None if weight.is_cuda or weight.dtype.itemsize >= 4 else weight.detach().float()


@contextmanager
def float32_logits(model: PreTrainedModel, weight: Tensor | None = None) -> Iterator[None]:
    """In this context, the model's own forward pass computes its logits in float32, as `token_scores` does.

    `weight` is what `float32_head` returned for the present weights.
    """
    layer = _output_layer(model)
    attributes = vars(layer)
    attributes["forward"] = lambda hidden: _wide_linear(hidden, layer.weight if weight is None else weight)
    try:
        yield
    finally:
        del attributes["forward"]


def _output_layer(model: PreTrainedModel) -> nn.Linear:
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or getattr(layer, "bias", None) is not None:
        raise ConfigError(
            f"the output layer of {type(model).__name__} must be a torch.nn.Linear without a bias, got {layer}; choose "
            "another model"
        )
    return layer


def _wide_linear(hidden: Tensor, weight: Tensor) -> Tensor:
    """A linear layer whose sums stay in float32; in bfloat16 a logit of 20 would be off by up to 0.06."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if hidden.is_cuda and hidden.dtype != wide:  # avoids a float32 copy of the weight, 2 GB for a 7B model
        return torch.mm(hidden.flatten(0, -2), weight.T, out_dtype=wide).view(*hidden.shape[:-1], -1)
    return linear(hidden.to(wide), weight.to(wide))


def token_scores(hidden: Tensor, targets: Tensor, head: Head, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of given tokens, with a gradient, and entropies of their distributions, without a gradient.

    Args:
        hidden: [N, H], of any float type, the states from which the N tokens are predicted.
        targets: int64 [N], the tokens.
        head: The output layer.
        temperature: The temperature of the distributions, > 0.

    Returns:
        The log-probabilities and the entropies, both float32 [N] (float64 if `hidden` is float64), in nats.
    """
    assert hidden.dim() == 2
    assert targets.shape == hidden.shape[:1]
    logp, entropy = _TokenScores.apply(hidden, head.weight, targets, head, temperature)  # type: ignore[no-untyped-call]
    return logp, entropy


class _TokenScores(torch.autograd.Function):
    """Computes the scores chunk by chunk. For the backward pass it keeps only the input and one number per token."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        head: Head,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logp, entropy, normaliser = (torch.empty(len(hidden), dtype=wide, device=hidden.device) for _ in range(3))
        for part in _chunks(hidden, weight):
            scaled = head.logits(hidden[part]).div_(temperature)
            logps = scaled.log_softmax(dim=1)
            at = targets[part, None]
            logp[part] = logps.gather(1, at).squeeze(1)
            normaliser[part] = scaled.gather(1, at).squeeze(1) - logp[part]
            entropy[part] = -torch.exp(logps, out=scaled).mul_(logps).sum(dim=1)
            del scaled, logps  # free them before the next chunk
        ctx.save_for_backward(hidden, weight, targets, normaliser)
        ctx.head, ctx.temperature = head, temperature
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normaliser = ctx.saved_tensors
        head, (grad, _) = Head(weight, ctx.head.scale, ctx.head.softcap), grads
        to_hidden, to_weight = ctx.needs_input_grad[:2]
        for_hidden = torch.empty_like(hidden) if to_hidden else None
        for_weight = torch.zeros_like(weight, dtype=normaliser.dtype) if to_weight else None
        for part in _chunks(hidden, weight):
            logits = head.logits(hidden[part])
            # d logp[id] / d scaled[v] = 1[v = id] - softmax(scaled)[v]
            local = (logits / ctx.temperature).sub_(normaliser[part, None]).exp_().mul_(-grad[part, None])
            local.scatter_add_(1, targets[part, None], grad[part, None])
            local.mul_(head.scale / ctx.temperature)
            if head.softcap is not None:  # d c tanh(x / c) / dx = 1 - tanh^2
                local.mul_(logits.div_(head.softcap).square_().neg_().add_(1))
            narrow = local.to(hidden.dtype)
            if for_hidden is not None:
                torch.mm(narrow, weight, out=for_hidden[part])
            if for_weight is not None and for_weight.dtype == hidden.dtype:
                for_weight.addmm_(narrow.T, hidden[part])
            elif for_weight is not None:
                for_weight += narrow.T @ hidden[part]
            del logits, local, narrow
        narrow_weight = None if for_weight is None else for_weight.to(weight.dtype)
        return for_hidden, narrow_weight, None, None, None


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    step = _chunk_tokens(len(weight), _gpu_bytes(hidden.device))
    return (slice(start, start + step) for start in range(0, len(hidden), step))


def _chunk_tokens(words: int, gpu_bytes: float) -> int:
    """The number of tokens that go through the output layer at a time.

    With each chunk, the weight and its gradient's sum are read again, so larger chunks are faster. A token's logits and
    their gradients take 12 bytes a word, and a chunk may take a twentieth of the GPU's memory. Elsewhere it has as many
    tokens as have 2^24 logits. It never has fewer than 512, which a matrix product needs to be fast.

    >>> _chunk_tokens(152_064, 80e9), _chunk_tokens(152_064, 0), _chunk_tokens(50, 0)
    (2048, 512, 335544)
    """
    if not gpu_bytes:
        return max(512, 2**24 // words)
    return max(512, int(gpu_bytes / 20 / (12 * words)) // 512 * 512)


@functools.cache
def _gpu_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
