"""The arithmetic of GRPO, as pure functions of tensors that check their ranks on entry.

GRPO: arXiv 2402.03300, Eq. 3 and 4. Dr.GRPO (no standard deviation, constant length): arXiv 2503.20783. Clipping higher
and token means (DAPO): arXiv 2503.14476. k3: Schulman, "Approximating KL Divergence", 2020. Truncated importance weights
of tokens between an engine and its trainer: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL
Training", 2025; the ratio apart from them: "decoupled PPO", arXiv 2110.00641. Left out: models, batching, and any choice of
episodes.

B is the number of episodes, S of tokens, V of the vocabulary; `mask` marks the tokens that the model wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from eh_gym.errors import ConfigError

__all__ = [
    "Aggregation",
    "aggregate",
    "group_advantages",
    "importance_weights",
    "kl_k3",
    "policy_loss",
    "token_entropy",
    "token_logprobs",
]

Aggregation = Literal["seq-mean", "token-mean", "fixed-length"]

# The exponential of a log-ratio above 88.7 is inf in float32, and inf * 0 is NaN, in the loss or in its gradient. A ratio
# of e^20 says as much as any larger one: it is no estimate of anything.
_MAX_LOG_RATIO = 20.0

# The most logits, in numbers, that are held once more as float32: 64 MiB. A whole copy of 16k tokens of 152k words is 10 GB.
_CHUNK = 2**24


def group_advantages(rewards: Tensor, *, normalize_std: bool = True, eps: float = 1e-4) -> Tensor:
    """Each episode's reward relative to its group's.

    Args:
        rewards: float [T, G], the G episodes of T tasks.
        normalize_std: Divide by the group's standard deviation (of the population, i.e. over G, plus `eps`).
        eps: Keeps the division finite.

    Returns:
        float [T, G]; exactly 0 for a group whose rewards are all equal.

    >>> group_advantages(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), normalize_std=False)
    tensor([[ 0.5000, -0.5000],
            [ 0.0000,  0.0000]])
    """
    _check_rank("rewards", rewards, 2)
    # A mean of equal floats can be off by one bit; such a group must come out as exact zeros.
    equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    centred = (rewards - rewards.mean(dim=1, keepdim=True)).masked_fill(equal, 0.0)
    if not normalize_std:
        return centred
    return centred / (rewards.std(dim=1, keepdim=True, correction=0) + eps)


def policy_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float = 0.2, clip_high: float = 0.2
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate of every token: -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A).

    Args:
        logp: float [B, S], under the present weights, in nats.
        old_logp: float [B, S], when it was sampled.
        advantages: float [B], one an episode.
        mask: bool [B, S].
        clip_low: >= 0.
        clip_high: >= 0; larger than `clip_low` lets rare tokens grow faster (DAPO).

    Returns:
        The loss, float [B, S], 0 outside the mask; and where the clipping took the gradient away, bool [B, S].
    """
    _check_rank("logp", logp, 2)
    _check_same("old_logp", old_logp, logp)
    _check_same("mask", mask, logp)
    _check_rank("advantages", advantages, 1)
    if len(advantages) != len(logp):
        raise ConfigError(f"advantages must hold one number for each of {len(logp)} episodes, got {len(advantages)}")
    if not (0 <= clip_low <= 1 and clip_high >= 0):
        raise ConfigError(
            f"clip_low must be in 0..1 and clip_high >= 0, got {clip_low} and {clip_high}; the paper has 0.2"
        )
    ratio = (logp - old_logp).clamp(max=_MAX_LOG_RATIO).exp()
    a = advantages[:, None]
    free, bounded = ratio * a, ratio.clamp(1 - clip_low, 1 + clip_high) * a
    return (-torch.minimum(free, bounded)).masked_fill(~mask, 0.0), (bounded < free) & mask


def importance_weights(logp: Tensor, sampled_logp: Tensor, mask: Tensor, *, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance weights of tokens: min(exp(trainer's - sampler's log-probability), cap), without gradient.

    Args:
        logp: float [B, S], the trainer's, under the weights that the update starts from.
        sampled_logp: float [B, S], when it was sampled.
        mask: bool [B, S].
        cap: >= 1.

    Returns:
        The weights, float [B, S], 1 outside the mask; and where they are the cap, bool [B, S].

    >>> weights, capped = importance_weights(
    ...     torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]]), torch.tensor([[True, True]]), cap=2.0
    ... )  # e^0, e^2 > 2
    >>> weights, capped
    (tensor([[1., 2.]]), tensor([[False,  True]]))
    """
    _check_rank("logp", logp, 2)
    _check_same("sampled_logp", sampled_logp, logp)
    _check_same("mask", mask, logp)
    if not cap >= 1:
        raise ConfigError(f"cap must be >= 1, got {cap}; a lower one would scale down what both sides agree on")
    ratio = (logp - sampled_logp).detach().clamp(max=_MAX_LOG_RATIO).exp().masked_fill(~mask, 1.0)
    return ratio.clamp(max=cap), ratio > cap


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference) from tokens that the policy sampled: e^d - d - 1, d = ref - logp.

    Args:
        logp: float [B, S].
        ref_logp: float [B, S].

    Returns:
        float [B, S], >= 0. Finite also for tokens that the policy did not sample, such as those of the prompt; they
        mean nothing and are to be masked.

    >>> kl_k3(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, -1.0]]))  # e^0 - 0 - 1, e^-1 + 1 - 1
    tensor([[0.0000, 0.3679]])
    """
    _check_rank("logp", logp, 2)
    _check_same("ref_logp", ref_logp, logp)
    d = (ref_logp - logp).clamp(max=_MAX_LOG_RATIO)
    return d.exp() - d - 1


def aggregate(
    per_token: Tensor, mask: Tensor, *, mode: Aggregation, n_episodes: int, n_tokens: int, fixed_length: int
) -> Tensor:
    """One micro-batch's part of the loss of an optimizer step.

    The counts are those of the whole step, so that the parts add up to the whole however it was split.

    Args:
        per_token: float [B, S].
        mask: bool [B, S].
        mode: "seq-mean": the mean over each episode's tokens, then over episodes (GRPO). "token-mean": over all tokens
            (DAPO). "fixed-length": the sum over a constant (Dr.GRPO), which must not move with K.
        n_episodes: Of the step.
        n_tokens: Tokens in the mask, of the step.
        fixed_length: The constant, in tokens per episode.

    Returns:
        A scalar.
    """
    _check_rank("per_token", per_token, 2)
    _check_same("mask", mask, per_token)
    kept = per_token.masked_fill(~mask, 0.0)
    if mode == "token-mean":
        return kept.sum() / n_tokens
    if mode == "seq-mean":
        return (kept.sum(dim=1) / mask.sum(dim=1).clamp_min(1)).sum() / n_episodes
    if mode == "fixed-length":
        return kept.sum() / (n_episodes * fixed_length)
    raise ConfigError(f"aggregation must be one of seq-mean, token-mean, fixed-length, got {mode!r}")


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of given tokens, with a gradient.

    Besides the logits and their gradient it needs a few times 64 MiB: neither a float32 copy of the logits nor their softmax
    is ever held whole.

    Args:
        logits: [B, S, V], of any float type; the arithmetic is float32, or float64 for float64.
        ids: int64 [B, S].
        temperature: > 0.

    Returns:
        float32 (float64) [B, S], in nats.
    """
    _check_rank("logits", logits, 3)
    if ids.shape != logits.shape[:2]:
        raise ConfigError(f"ids must have shape {tuple(logits.shape[:2])}, as the logits, got {tuple(ids.shape)}")
    _check_temperature(temperature)
    logp: Tensor = _TokenLogprobs.apply(logits, ids, temperature)  # type: ignore[no-untyped-call]
    return logp


@torch.no_grad()
def token_entropy(logits: Tensor, temperature: float) -> Tensor:
    """Entropy of the distribution of every token, without gradient.

    Args:
        logits: [B, S, V], of any float type; the arithmetic is float32, or float64 for float64.
        temperature: > 0.

    Returns:
        float32 (float64) [B, S], in nats.
    """
    _check_rank("logits", logits, 3)
    _check_temperature(temperature)
    entropy = torch.empty(logits.shape[:2], dtype=_wide(logits), device=logits.device)
    for part in _parts(logits):
        logp = torch.log_softmax(logits[:, part].to(entropy.dtype) / temperature, dim=2)
        entropy[:, part] = -(logp.exp() * logp).sum(dim=2)
    return entropy


class _TokenLogprobs(torch.autograd.Function):
    """logits / T at the ids, less its logsumexp; backward computes the softmax again, a stretch of tokens at a time."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
        logp = torch.empty(ids.shape, dtype=_wide(logits), device=logits.device)
        normaliser = torch.empty_like(logp)
        for part in _parts(logits):
            scaled = logits[:, part].to(logp.dtype) / temperature
            normaliser[:, part] = scaled.logsumexp(dim=2)
            logp[:, part] = scaled.gather(2, ids[:, part, None]).squeeze(2) - normaliser[:, part]
        ctx.save_for_backward(logits, ids, normaliser)
        ctx.temperature = temperature
        return logp

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, ids, normaliser = ctx.saved_tensors
        result = torch.empty_like(logits)
        for part in _parts(logits):
            grad = grads[0][:, part, None]
            scaled = logits[:, part].to(normaliser.dtype) / ctx.temperature
            # d logp[id] / d scaled[v] = 1[v = id] - softmax(scaled)[v]
            local = (scaled - normaliser[:, part, None]).exp_().mul_(-grad).scatter_add_(2, ids[:, part, None], grad)
            result[:, part] = local.div_(ctx.temperature)
        return result, None, None


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _parts(logits: Tensor) -> Iterator[slice]:
    """Stretches of tokens with at most `_CHUNK` logits each."""
    n_episodes, n_tokens, n_words = logits.shape
    stretch = max(1, _CHUNK // max(1, n_episodes * n_words))
    return (slice(start, start + stretch) for start in range(0, n_tokens, stretch))


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise ConfigError(f"temperature must be > 0, got {temperature}; score greedy samples at temperature 1")


def _check_rank(name: str, tensor: Tensor, rank: int) -> None:
    if tensor.dim() != rank:
        raise ConfigError(f"{name} must have {rank} dimensions, got shape {tuple(tensor.shape)}")


def _check_same(name: str, tensor: Tensor, other: Tensor) -> None:
    if tensor.shape != other.shape:
        raise ConfigError(f"{name} must have shape {tuple(other.shape)}, got {tuple(tensor.shape)}")
