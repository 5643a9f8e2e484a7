"""The arithmetic of GRPO, as pure functions of tensors that check their ranks on entry.

GRPO: arXiv 2402.03300, Eq. 3 and 4. Dr.GRPO (no standard deviation, constant length): arXiv 2503.20783. Clipping higher
and token means (DAPO): arXiv 2503.14476. Left out: models, batching, and any choice of episodes.

B is the number of episodes, S of tokens, V of the vocabulary; `mask` marks the tokens that the model wrote.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eh_gym.errors import ConfigError

__all__ = ["Aggregation", "aggregate", "group_advantages", "kl_k3", "policy_loss", "token_entropy", "token_logprobs"]

Aggregation = Literal["seq-mean", "token-mean", "fixed-length"]


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
    # Padding first: the exponential of garbage outside the mask could be inf, and inf * 0 is NaN.
    ratio = (logp - old_logp).masked_fill(~mask, 0.0).exp()
    a = advantages[:, None]
    free, bounded = ratio * a, ratio.clamp(1 - clip_low, 1 + clip_high) * a
    return (-torch.minimum(free, bounded)).masked_fill(~mask, 0.0), (bounded < free) & mask


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference) from tokens that the policy sampled: e^d - d - 1, d = ref - logp.

    Args:
        logp: float [B, S].
        ref_logp: float [B, S].

    Returns:
        float [B, S], >= 0.
    """
    _check_same("ref_logp", ref_logp, logp)
    d = ref_logp - logp
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
    kept = per_token * mask
    if mode == "token-mean":
        return kept.sum() / n_tokens
    if mode == "seq-mean":
        return (kept.sum(dim=1) / mask.sum(dim=1).clamp_min(1)).sum() / n_episodes
    if mode == "fixed-length":
        return kept.sum() / (n_episodes * fixed_length)
    raise ConfigError(f"aggregation must be one of seq-mean, token-mean, fixed-length, got {mode!r}")


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of given tokens.

    Args:
        logits: [B, S, V].
        ids: int64 [B, S].
        temperature: > 0.

    Returns:
        float32 [B, S], in nats.
    """
    _check_rank("logits", logits, 3)
    _check_rank("ids", ids, 2)
    scaled = logits.float() / temperature
    return scaled.gather(2, ids[..., None]).squeeze(2) - scaled.logsumexp(dim=2)


@torch.no_grad()
def token_entropy(logits: Tensor, temperature: float) -> Tensor:
    """Entropy of the distribution of every token, without gradient.

    Args:
        logits: [B, S, V].
        temperature: > 0.

    Returns:
        float32 [B, S], in nats.
    """
    _check_rank("logits", logits, 3)
    logp = torch.log_softmax(logits.float() / temperature, dim=2)
    return -(logp.exp() * logp).sum(dim=2)


def _check_rank(name: str, tensor: Tensor, rank: int) -> None:
    if tensor.dim() != rank:
        raise ConfigError(f"{name} must have {rank} dimensions, got shape {tuple(tensor.shape)}")


def _check_same(name: str, tensor: Tensor, other: Tensor) -> None:
    if tensor.shape != other.shape:
        raise ConfigError(f"{name} must have shape {tuple(other.shape)}, got {tuple(tensor.shape)}")
