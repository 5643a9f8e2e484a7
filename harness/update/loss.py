"""The arithmetic of GRPO, as pure functions that assert the shapes of their tensors.

The sources are:

- GRPO: arXiv 2402.03300, Eq. 3 and 4.
- Dr.GRPO (no standard deviation): arXiv 2503.20783.
- The higher upper clipping bound and the token mean (DAPO): arXiv 2503.14476.
- k3: Schulman, "Approximating KL Divergence", 2020.
- Truncated importance weights of tokens, between an engine and its trainer: Yao et al., "Your Efficient RL Framework
  Secretly Brings You Off-Policy RL Training", 2025. Keeping the ratio separate from these weights: "decoupled PPO",
  arXiv 2110.00641.

B is the number of episodes, S the number of tokens.
"""

import torch
from torch import Tensor

from harness.settings.loss import Aggregation

# In float32 the exponential of a log-ratio above 88.7 is inf, and inf * 0 is NaN. The cap loses nothing, because a
# ratio of e^20 or more estimates nothing.
_MAX_LOG_RATIO = 20.0


def group_advantages(rewards: Tensor, *, normalize_std: bool = True, eps: float = 1e-4) -> Tensor:
    """Each episode's reward minus the mean reward of its group, optionally divided by the standard deviation.

    Args:
        rewards: float [T, G], the rewards of the G episodes of T tasks, as exact as they are known.
        normalize_std: Whether to divide by the group's standard deviation (of the population, i.e. over G, plus `eps`).
        eps: Keeps the division finite.

    Returns:
        float32 [T, G]; exactly 0 in a group whose rewards are all equal.

    >>> group_advantages(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), normalize_std=False)
    tensor([[ 0.5000, -0.5000],
            [ 0.0000,  0.0000]])
    """
    _assert_alike(rewards)
    # The mean of equal floats can be off by one bit, but such a group must get exact zeros.
    rewards = rewards.double()  # those of a group may differ by little
    equal = torch.isclose(rewards, rewards[:, :1], rtol=1e-9).all(dim=1, keepdim=True)  # but for the rounding of sums
    centred = (rewards - rewards.mean(dim=1, keepdim=True)).masked_fill(equal, 0.0).float()
    if not normalize_std:
        return centred
    return centred / (centred.std(dim=1, keepdim=True, correction=0) + eps)


def policy_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float = 0.2, clip_high: float = 0.2
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate loss of every token: -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A).

    Args:
        logp: float [B, S], log-probabilities under the present weights, in nats.
        old_logp: float [B, S], log-probabilities in the denominator of the ratio, in nats.
        advantages: float [B], one per episode.
        mask: bool [B, S], True for tokens that the model wrote.
        clip_low: In 0..1; the ratio is clipped below at 1 - `clip_low`.
        clip_high: >= 0; the ratio is clipped above at 1 + `clip_high`. A value above `clip_low` lets rare tokens grow
            faster (DAPO).

    Returns:
        The loss, float [B, S], 0 outside the mask; and whether the clipping removed the token's gradient, bool [B, S].
    """
    _assert_alike(logp, old_logp, mask, advantages=advantages)
    ratio, a = (logp - old_logp).clamp(max=_MAX_LOG_RATIO).exp(), advantages[:, None]
    free, bounded = ratio * a, ratio.clamp(1 - clip_low, 1 + clip_high) * a
    return (-torch.minimum(free, bounded)).masked_fill(~mask, 0.0), (bounded < free) & mask


def importance_weights(logp: Tensor, sampled_logp: Tensor, mask: Tensor, *, cap: float) -> tuple[Tensor, Tensor]:
    """Importance weights of tokens, min(trainer's / sampler's probability, cap), without gradient.

    Args:
        logp: float [B, S], the trainer's log-probabilities under the weights that the update starts from.
        sampled_logp: float [B, S], the sampler's log-probabilities at the time of sampling.
        mask: bool [B, S], True for tokens that the model wrote.
        cap: The largest weight, >= 1; a lower one would scale down tokens on which both sides agree.

    Returns:
        The weights, float [B, S], 1 outside the mask; and whether the ratio exceeds the cap, bool [B, S].

    >>> logp, sampled = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]])  # ratios e^0, e^2
    >>> written = torch.tensor([[True, True]])
    >>> importance_weights(logp, sampled, written, cap=2.0)
    (tensor([[1., 2.]]), tensor([[False,  True]]))
    """
    _assert_alike(logp, sampled_logp, mask)
    log_ratio = (logp - sampled_logp).detach().masked_fill(~mask, 0.0)
    ratio = log_ratio.clamp(max=_MAX_LOG_RATIO).exp()
    return ratio.clamp(max=cap), ratio > cap


def kl_k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference) from tokens that the policy sampled: e^d - d - 1, d = ref -
    logp.

    Args:
        logp: float [B, S], the policy's log-probabilities.
        ref_logp: float [B, S], the reference's log-probabilities.

    Returns:
        float [B, S], >= 0. The estimate is finite but meaningless for tokens that the policy did not sample, such as
        those of the prompt. The caller must mask them.

    >>> kl_k3(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, -1.0]]))  # e^0 - 0 - 1, e^-1 + 1 - 1
    tensor([[0.0000, 0.3679]])
    """
    _assert_alike(logp, ref_logp)
    d = (ref_logp - logp).clamp(max=_MAX_LOG_RATIO)
    return d.exp() - d - 1


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    *,
    mode: Aggregation,
    n_episodes: int,
    n_tokens: int,
    episode_tokens: Tensor,
) -> Tensor:
    """One micro-batch's part of the loss of an optimizer step.

    The counts are those of the whole step, so the parts add up to the loss of the step, however it was split.

    Args:
        per_token: float [B, S], the loss of each token.
        mask: bool [B, S], True for tokens that the model wrote.
        mode: "seq-mean": the mean over each episode's tokens, then over episodes (GRPO). "token-mean": the mean over
            all tokens (DAPO).
        n_episodes: The number of episodes in the step.
        n_tokens: The number of tokens in the mask, over the step.
        episode_tokens: int [B], the number of written tokens of each row's episode.

    Returns:
        A scalar.
    """
    _assert_alike(per_token, mask)
    kept = per_token.masked_fill(~mask, 0.0)
    if mode == "token-mean":
        return kept.sum() / n_tokens
    assert mode == "seq-mean", f"no aggregation {mode}"
    return (kept.sum(dim=1) / episode_tokens.clamp_min(1)).sum() / n_episodes


def _assert_alike(*tensors: Tensor, advantages: Tensor | None = None) -> None:
    """All must be [B, S], and the advantages [B]: nothing may broadcast."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    assert len(set(shapes)) == 1, f"expected one shape, got {shapes}"
    assert len(shapes[0]) == 2, f"expected [B, S], got {shapes[0]}"
    if advantages is not None:
        assert advantages.shape == shapes[0][:1], f"expected {shapes[0][:1]}, got {tuple(advantages.shape)}"
