"""One policy update: advantages, the clipped loss over micro-batches, the optimizer's steps.

GRPO as the paper uses it (arXiv 2402.03300, KL coefficient 0): every episode's advantage is its reward relative to the
other episodes of its task. Left out: value functions, and GAE, which with gamma = lambda = 1 and one reward at the end
is that same advantage.

Two policies may stand where the ratio's denominator is. By default it is the one that sampled, with the log-probabilities
that the sampler reported: clipping then also bounds what the sampler was behind or rounded otherwise. With `tis_cap` it is
the trainer's own, before the first optimizer step, and each token's loss is weighted by min(trainer's / sampler's
probability, cap): the clipping is about this update's steps alone, the weight about everything between the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.policy.batch import Batch
from harness.policy.lora import without_lora
from harness.policy.policy import Policy
from harness.policy.ranks import Ranks, whole
from harness.settings.loss import LossSettings
from harness.training.loss import aggregate, group_advantages, importance_weights, kl_k3, policy_loss
from harness.training.mismatch import Mismatch
from harness.training.optimizer import parameters_of
from harness.types.trajectory import Trajectory

__all__ = ["select_episodes", "update_policy"]


@dataclass
class _Item:
    """One episode of the loss; `old_logp`: the trainer's log-probabilities before the first step, float32 [written tokens]."""

    trajectory: Trajectory
    advantage: float
    old_logp: Tensor | None = None


def select_episodes(
    trajectories: Sequence[Trajectory], *, normalize_std: bool, train_on_truncated: bool, kl: bool = False
) -> tuple[list[tuple[Trajectory, float]], float]:
    """Pairs the episodes that teach something with their advantages.

    An episode whose environment failed is dropped before its group's mean is taken: its reward says nothing about the
    policy. A group whose rewards are all equal has no advantage and is dropped whole, unless there is a KL term.

    Args:
        trajectories: One update's episodes.
        normalize_std: Whether advantages are divided by their group's standard deviation.
        train_on_truncated: Whether truncated episodes are in the loss.
        kl: Whether the loss has a KL term, which is about every episode, those without an advantage too (paper, Eq. 3).

    Returns:
        The pairs, and the share of groups that were all equal.
    """
    groups: dict[int, list[Trajectory]] = {}
    for t in trajectories:
        if t.end != "environment-error":
            groups.setdefault(t.group, []).append(t)
    chosen: list[tuple[Trajectory, float]] = []
    equal = 0
    for group in groups.values():
        rewards = torch.tensor([[t.reward for t in group]])
        advantages = group_advantages(rewards, normalize_std=normalize_std)[0].tolist()
        if not any(advantages):
            equal += 1
        for t, advantage in zip(group, advantages, strict=True):
            if t.action_tokens and (advantage or kl) and (train_on_truncated or not t.truncated):
                chosen.append((t, advantage))
    return chosen, equal / max(1, len(groups))


def update_policy(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    trajectories: Sequence[Trajectory],
    settings: LossSettings,
    *,
    seed: int,
    reference: Policy | None = None,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """Improves the policy in place and returns ``train/...`` metrics.

    Args:
        policy: Its model is trained.
        optimizer: Over the model's parameters, or copies of them (`make_optimizer`); the learning rate is already set.
        trajectories: One update's episodes, of all ranks.
        settings: The loss.
        seed: Draws which episodes share an optimizer step.
        reference: The frozen policy of the KL term, or with LoRA `policy` itself; needed if ``kl_coef`` is not 0.
        ranks: Who shares the work; None for this process alone.
    """
    ranks = ranks or Ranks()
    chosen, equal_share = select_episodes(
        trajectories,
        normalize_std=settings.normalize_std,
        train_on_truncated=settings.train_on_truncated,
        kl=bool(settings.kl_coef),
    )
    sums: dict[str, float] = dict.fromkeys(("loss", "entropy", "approx_kl", "clipped", "kl_ref", "grad_norm"), 0.0)
    n_tokens = sum(t.action_tokens for t, _ in chosen)
    mismatch, steps, skipped = Mismatch(), 0, 0
    policy.model.train()
    order = np.random.default_rng(seed).permutation(len(chosen))
    parts = [[_Item(*chosen[i]) for i in part] for part in np.array_split(order, settings.minibatches) if len(part)]
    if settings.tis_cap:  # the first step's own forward pass comes before any weight has moved
        for minibatch in parts[1:]:
            _score_before(policy, minibatch, settings, ranks)
    for minibatch in parts:
        optimizer.zero_grad(set_to_none=True)
        _accumulate_gradients(policy, reference, minibatch, settings, ranks, sums, mismatch, first=steps == 0)
        norm = float(whole(torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), settings.max_grad_norm)))
        sums["grad_norm"] += norm / ranks.size  # each rank has the norm of all
        steps += 1
        if math.isfinite(norm):
            optimizer.step()
        else:  # one step with it, and every weight and moment is NaN for good, in the next checkpoints too
            skipped += 1
    optimizer.zero_grad(set_to_none=True)  # or the next rollout would hold them
    sums = ranks.sums(sums)
    every = ranks.gather([mismatch])
    mismatch = every[0].merged(every[1:])
    per_step, per_token = 1 / max(1, steps), 1 / max(1, n_tokens)
    metrics = {
        "train/loss": sums["loss"] * per_step,
        "train/grad_norm": sums["grad_norm"] * per_step,
        "train/entropy": sums["entropy"] * per_token if n_tokens else float("nan"),
        "train/approx_kl": sums["approx_kl"] * per_token,
        "train/clip_fraction": sums["clipped"] * per_token,
        "train/skipped_steps": float(skipped),
        "train/zero_advantage_groups": equal_share,
        "train/episodes_in_loss": float(len(chosen)),
        "train/tokens_in_loss": float(n_tokens),
    }
    if reference is not None:
        metrics["train/kl_ref"] = sums["kl_ref"] * per_token
    return metrics | mismatch.metrics(weighted=bool(settings.tis_cap))


def _accumulate_gradients(
    policy: Policy,
    reference: Policy | None,
    minibatch: list[_Item],
    settings: LossSettings,
    ranks: Ranks,
    sums: dict[str, float],
    mismatch: Mismatch,
    *,
    first: bool,
) -> None:
    """Adds one optimizer step's gradient, micro-batch by micro-batch."""
    n_tokens = sum(item.trajectory.action_tokens for item in minibatch)
    for items, batch in _micro(policy, minibatch, settings, ranks):
        if not items:
            _pass_idly(policy, reference, batch, settings)
            continue
        advantages = torch.tensor([item.advantage for item in items], device=policy.model.device)
        lengths = [item.trajectory.length for item in items]
        mask, sampled_logp = batch.action_mask, batch.logprobs
        logp, entropy = policy.score(batch, settings.temperature)
        before = logp.detach() if first else _stacked(items, logp)
        if before is not None:
            mismatch.add(before, sampled_logp, mask, lengths)
        old_logp = before if settings.tis_cap and before is not None else sampled_logp
        per_token, clipped = policy_loss(
            logp, old_logp, advantages, mask, clip_low=settings.clip_low, clip_high=settings.clip_high
        )
        if settings.tis_cap:
            weights, capped = importance_weights(old_logp, sampled_logp, mask, cap=settings.tis_cap)
            mismatch.add_weights(weights, capped, mask, lengths)
            per_token = per_token * weights
        if settings.kl_coef:
            assert reference is not None, "kl_coef needs a reference policy"
            kl = kl_k3(logp, _reference_logp(reference, batch, settings.temperature))
            per_token = per_token + settings.kl_coef * kl
            sums["kl_ref"] += float((kl.detach() * mask).sum())
        loss = aggregate(
            per_token,
            mask,
            mode=settings.aggregation,
            n_episodes=len(minibatch),
            n_tokens=n_tokens,
            fixed_length=settings.fixed_length,
        )
        (loss * ranks.size).backward()  # FSDP takes the mean over ranks, and the parts are to be added
        with torch.no_grad():
            sums["loss"] += loss.item()
            sums["entropy"] += float((entropy * mask).sum())
            sums["approx_kl"] += float((kl_k3(logp, sampled_logp) * mask).sum())
            sums["clipped"] += float((clipped & mask).sum())


def _micro(
    policy: Policy, minibatch: list[_Item], settings: LossSettings, ranks: Ranks
) -> Iterator[tuple[list[_Item], Batch]]:
    """This rank's episodes of one optimizer step, in parts; none where it is to pass idly."""
    episodes = [item.trajectory for item in minibatch]
    for indices, batch in policy.batches(episodes, settings.tokens_per_microbatch, rank=ranks.rank, ranks=ranks.size):
        yield [minibatch[i] for i in indices], batch


def _pass_idly(policy: Policy, reference: Policy | None, batch: Batch, settings: LossSettings) -> None:
    """Takes part in the other ranks' passes with a gradient of 0."""
    logp, _ = policy.score(batch, settings.temperature)
    if reference is not None:
        _reference_logp(reference, batch, settings.temperature)
    (logp * 0).sum().backward()


@torch.no_grad()
def _score_before(policy: Policy, minibatch: list[_Item], settings: LossSettings, ranks: Ranks) -> None:
    """Keeps the log-probabilities that the present weights give to the episodes of a later step."""
    for items, batch in _micro(policy, minibatch, settings, ranks):
        logp, _ = policy.score(batch, settings.temperature)
        for item, row in zip(items, logp[: len(items)], strict=True):  # none in an idle pass
            item.old_logp = row[: item.trajectory.action_tokens].clone()


def _stacked(items: list[_Item], like: Tensor) -> Tensor | None:
    """What `_score_before` kept of these episodes, padded with zeros to the shape of `like`; None if nothing was kept."""
    kept = [item.old_logp for item in items if item.old_logp is not None]
    if not kept:
        return None
    stacked = torch.zeros_like(like)
    for row, logp in zip(stacked, kept, strict=True):
        row[: len(logp)] = logp
    return stacked


@torch.no_grad()
def _reference_logp(reference: Policy, batch: Batch, temperature: float) -> Tensor:
    with without_lora(reference.model):
        return reference.score(batch, temperature)[0]
