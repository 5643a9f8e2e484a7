"""One policy update: advantages, the clipped loss over micro-batches, and the optimizer's steps.

This is GRPO as the paper uses it (arXiv 2402.03300, KL coefficient 0). The advantage of an episode is its reward
relative to the other episodes of its task. There is no value function and no GAE: with gamma = lambda = 1 and one
reward at the end, GAE gives the same advantage.

The denominator of the ratio comes from the sampler or, with `tis_cap`, from the trainer before its first step:
docs/harness.md, "Two sets of log-probabilities".

If an agent program changes its history, an episode has several sequences of tokens. Each is scored by itself. All have
the episode's advantage, and in every mean over episodes they count as one.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.machine.ranks import ALONE, Ranks
from harness.model.batch import Batch
from harness.model.lora import without_lora
from harness.model.policy import Policy
from harness.model.shards import whole
from harness.settings.loss import Loss
from harness.settings.optimizer import Optimizer
from harness.types.trajectory import TokenSequence, Trajectory, by_group
from harness.update.loss import aggregate, group_advantages, importance_weights, kl_k3, policy_loss
from harness.update.mismatch import Mismatch
from harness.update.optimizer import parameters_of

_SUMS = ("loss", "entropy", "approx_kl", "clipped", "kl_ref")


@dataclass
class _Item:
    """A sequence of an episode. `old_logp`, float32 [written tokens], comes from the trainer before the first step."""

    tokens: TokenSequence
    trajectory: Trajectory
    advantage: float
    old_logp: Tensor | None = None


@dataclass(frozen=True)
class _Step:
    """The sequences of one optimizer step, and by what surrogate and KL term are divided: (episodes, tokens)."""

    items: list[_Item]
    surrogate: tuple[int, int]
    kl: tuple[int, int]


@dataclass(frozen=True)
class _Passes:
    """What the forward passes of an update share. A pass has at most `tokens` tokens."""

    policy: Policy
    reference: Policy | None
    settings: Loss
    tokens: int
    temperature: float
    ranks: Ranks

    def microbatches(self, minibatch: list[_Item]) -> Iterator[tuple[list[_Item], Batch]]:
        tokens, ranks = [item.tokens for item in minibatch], self.ranks
        for indices, batch in self.policy.batches(tokens, self.tokens, rank=ranks.rank, ranks=ranks.size):
            yield [minibatch[i] for i in indices], batch

    def pass_idly(self, batch: Batch) -> None:
        """Takes part in a forward and backward pass of the other ranks, with a gradient of 0."""
        logp, _ = self.policy.score(batch, self.temperature)
        if self.reference is not None:
            self.reference_logp(batch)
        (logp * 0).sum().backward()

    @torch.no_grad()
    def reference_logp(self, batch: Batch) -> Tensor:
        assert self.reference is not None, "kl_coef needs a reference policy"
        with without_lora(self.reference.model):
            return self.reference.score(batch, self.temperature)[0]


def select_episodes(
    trajectories: Sequence[Trajectory], settings: Loss
) -> tuple[list[tuple[Trajectory, float]], set[int]]:
    """Selects the episodes that contribute to the loss, with their advantages.

    Episodes whose environment failed are dropped first, so they do not count in the mean of their group. A group whose
    rewards are all equal is dropped too, unless there is a KL term, which covers every episode (paper, Eq. 3). All
    episodes of another group are in the loss and in its divisor, also one whose advantage is 0.

    An episode that filled the context has weight 1, whatever ``truncated_weight`` is. Otherwise an agent could remove
    its failures from the loss by writing long texts.

    Returns:
        Pairs of an episode and its advantage; and the groups whose rewards differ.
    """
    chosen: list[tuple[Trajectory, float]] = []
    differing: set[int] = set()
    for number, group in by_group(trajectories).items():
        rewards = torch.tensor([[t.reward for t in group]], dtype=torch.float64)
        advantages = group_advantages(rewards, normalize_std=settings.normalize_std)[0].tolist()
        if any(advantages):
            differing.add(number)
        for t, advantage in zip(group, advantages, strict=True):
            weight = settings.truncated_weight if t.truncated and t.end != "context" else 1.0
            if weight and (number in differing or settings.kl_coef):
                chosen.append((t, weight * advantage))
    return chosen, differing


def update_policy(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    trajectories: Sequence[Trajectory],
    settings: Loss,
    optimization: Optimizer,
    *,
    temperature: float,
    seed: int,
    reference: Policy | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Improves the policy in place and returns ``train/...`` metrics.

    Args:
        policy: The policy. Its model is trained.
        optimizer: From `make_optimizer`. Its learning rate is already set.
        trajectories: One update's episodes, from all ranks.
        settings: How episodes become a loss.
        optimization: How the loss becomes optimizer steps.
        temperature: The sampler's temperature, > 0.
        seed: Draws which episodes share an optimizer step.
        reference: The frozen policy of the KL term; with LoRA, `policy` itself. It is needed if ``kl_coef`` is not 0.
        ranks: The processes that share the work.
    """
    chosen, differing = select_episodes(trajectories, settings)
    groups = len(by_group(trajectories))
    passes = _Passes(policy, reference, settings, optimization.tokens_per_microbatch, temperature, ranks)
    # The sums stay on the model's device and are read once, because reading a number waits for the GPU.
    device = policy.model.device
    wide = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
    sums = {name: torch.zeros((), dtype=wide, device=device) for name in _SUMS}
    grad_norm = 0.0
    n_tokens = sum(t.action_tokens for t, _ in chosen)
    mismatch, steps, skipped = Mismatch(), 0, 0
    policy.model.train()
    order = np.random.default_rng(seed).permutation(len(chosen))
    parts = [[chosen[i] for i in part] for part in np.array_split(order, optimization.minibatches) if len(part)]
    minibatches = [step for part in parts if (step := _step(part, differing)).items]
    if settings.tis_cap:  # not needed for the first step: its own forward pass comes before any weight has moved
        for minibatch in minibatches[1:]:
            _score_before(passes, minibatch.items)
    for minibatch in minibatches:
        optimizer.zero_grad(set_to_none=True)
        _accumulate_gradients(passes, minibatch, sums, mismatch, first=steps == 0)
        norm = float(whole(torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), optimization.max_grad_norm)))
        grad_norm += norm / ranks.size  # each rank has the norm over all ranks
        steps += 1
        if math.isfinite(norm):
            optimizer.step()
        else:  # one step with this gradient would make all weights and moments NaN, also in later checkpoints
            skipped += 1
    optimizer.zero_grad(set_to_none=True)  # else the gradients would take memory during the next rollout
    own = {name: float(value) for name, value in sums.items()} | {"grad_norm": grad_norm}
    every = ranks.gather([(own, mismatch.settled())])
    total = {name: sum(numbers[name] for numbers, _ in every) for name in own}
    mismatch = every[0][1].merged([one for _, one in every[1:]])
    per_step, per_token = 1 / max(1, steps), 1 / max(1, n_tokens)
    metrics = {
        "train/loss": total["loss"] * per_step,
        "train/grad_norm": total["grad_norm"] * per_step,
        "train/entropy": total["entropy"] * per_token if n_tokens else float("nan"),
        "train/approx_kl": total["approx_kl"] * per_token,
        "train/clip_fraction": total["clipped"] * per_token,
        "train/skipped_steps": float(skipped),
        "train/zero_advantage_groups": (groups - len(differing)) / max(1, groups),
        "train/episodes_in_loss": float(len(chosen)),
        "train/tokens_in_loss": float(n_tokens),
    }
    if reference is not None:
        metrics["train/kl_ref"] = total["kl_ref"] * per_token
    return metrics | mismatch.metrics(weighted=bool(settings.tis_cap))


def _accumulate_gradients(
    passes: _Passes, step: _Step, sums: dict[str, Tensor], mismatch: Mismatch, *, first: bool
) -> None:
    policy, settings = passes.policy, passes.settings
    (n_episodes, n_tokens), (kl_episodes, kl_tokens) = step.surrogate, step.kl
    for items, batch in passes.microbatches(step.items):
        if not items:
            passes.pass_idly(batch)
            continue
        advantages = torch.tensor([item.advantage for item in items], device=policy.model.device)
        lengths = [item.trajectory.length for item in items]
        mask, sampled_logp = batch.action_mask, batch.logprobs
        logp, entropy = policy.score(batch, passes.temperature)
        before = logp.detach() if first else _stacked(items, logp)
        old_logp = before if settings.tis_cap and before is not None else sampled_logp
        per_token, clipped = policy_loss(
            logp, old_logp, advantages, mask, clip_low=settings.clip_low, clip_high=settings.clip_high
        )
        weights = capped = None
        if settings.tis_cap:
            weights, capped = importance_weights(old_logp, sampled_logp, mask, cap=settings.tis_cap)
            per_token = per_token * weights
        if before is not None:
            mismatch.add(before, sampled_logp, mask, lengths, weights, capped)
        mean = functools.partial(
            aggregate,
            mask=mask,
            mode=settings.aggregation,
            episode_tokens=torch.tensor([item.trajectory.action_tokens for item in items], device=policy.model.device),
        )
        loss = mean(per_token, n_episodes=n_episodes, n_tokens=n_tokens)
        if settings.kl_coef:
            kl = kl_k3(logp, passes.reference_logp(batch))
            loss = loss + settings.kl_coef * mean(kl, n_episodes=kl_episodes, n_tokens=kl_tokens)
            sums["kl_ref"] += (kl.detach() * mask).sum()
        (loss * passes.ranks.size).backward()  # FSDP averages over ranks, but the parts must be summed
        with torch.no_grad():
            sums["loss"] += loss
            sums["entropy"] += (entropy * mask).sum()
            sums["approx_kl"] += (kl_k3(sampled_logp, logp) * mask).sum()  # the sampler's distribution drew the tokens
            sums["clipped"] += (clipped & mask).sum()


def _step(episodes: Sequence[tuple[Trajectory, float]], differing: set[int]) -> _Step:
    """The sequences in which the model wrote something, and the divisors.

    The surrogate is a mean over the episodes of groups whose rewards differ, the KL term a mean over all. So
    ``kl_coef`` does not change the scale of the surrogate.
    """
    items = [_Item(tokens, t, a) for t, a in episodes for tokens in t.sequences if any(tokens.action_mask)]
    return _Step(items, _counts([t for t, _ in episodes if t.group in differing]), _counts([t for t, _ in episodes]))


def _counts(episodes: Sequence[Trajectory]) -> tuple[int, int]:
    """The numbers of episodes and of the model's tokens, by which `aggregate` divides; at least 1."""
    return max(1, len(episodes)), max(1, sum(t.action_tokens for t in episodes))


@torch.no_grad()
def _score_before(passes: _Passes, minibatch: list[_Item]) -> None:
    for items, batch in passes.microbatches(minibatch):
        logp, _ = passes.policy.score(batch, passes.temperature)
        for item, row in zip(items, logp[: len(items)], strict=True):  # an idle pass has no items
            item.old_logp = row[: sum(item.tokens.action_mask)].clone()


def _stacked(items: list[_Item], like: Tensor) -> Tensor | None:
    kept = [item.old_logp for item in items if item.old_logp is not None]
    if not kept:
        return None
    stacked = torch.zeros_like(like)
    for row, logp in zip(stacked, kept, strict=True):
        row[: len(logp)] = logp
    return stacked
