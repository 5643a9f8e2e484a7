"""The losses against TRL's own on the same batch; TRL's model is a table of numbers."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from one_step import copied, one_step, update

from harness.update.loss import aggregate, kl_k3, policy_loss

trl = pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is not installed: pip install -e '.[examples]'")

EPISODES, TOKENS, KL = 6, 9, 0.05
MODES = (("seq-mean", "grpo"), ("token-mean", "dapo"))


def batch(seed=0):
    """Log-probabilities now, of the sampler and of a reference, float64 [B, S]; advantages [B]; the mask."""
    g = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(EPISODES, TOKENS, generator=g, dtype=torch.float64)
    logp, ref = (old + torch.rand(old.shape, generator=g, dtype=torch.float64) - 0.5 for _ in range(2))
    mask = torch.rand(EPISODES, TOKENS, generator=g) < 0.7
    mask[0] = torch.arange(TOKENS) == 0  # an episode of one token
    return logp.requires_grad_(), old, ref, torch.randn(EPISODES, generator=g, dtype=torch.float64), mask


def trl_loss(logp, old, ref, advantages, mask, weights, **settings):
    """What TRL's trainer computes; it gets its log-probabilities from `logp` and not from a model."""
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, **_: x, gather=lambda x: x),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        _metrics={"train": defaultdict(list)},
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        beta=KL,
        use_vllm=weights is not None,
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        max_completion_length=12,
        **settings,
    )
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": weights,
    }
    return trl.GRPOTrainer._compute_loss(trainer, None, inputs)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("mode", "loss_type"), MODES)
def test_value_and_gradient(mode, loss_type, weighted):
    logp, old, ref, advantages, mask = batch()
    weights = torch.linspace(0.5, 2.0, TOKENS, dtype=torch.float64).expand(EPISODES, TOKENS) if weighted else None
    settings = {"loss_type": loss_type, "epsilon_low": 0.2, "epsilon_high": 0.28, "importance_sampling_level": "token"}
    expected = trl_loss(logp, old, ref, advantages, mask, weights, **settings)
    (expected_gradient,) = torch.autograd.grad(expected, logp)
    per_token, clipped = policy_loss(logp, old, advantages, mask, clip_low=0.2, clip_high=0.28)
    if weights is not None:
        per_token = per_token * weights
    counts = {"n_episodes": EPISODES, "n_tokens": int(mask.sum()), "episode_tokens": mask.sum(dim=1)}
    value = aggregate(per_token + KL * kl_k3(logp, ref), mask, mode=mode, **counts)
    (gradient,) = torch.autograd.grad(value, logp)
    assert clipped.any(), "the batch must reach the clips"
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


GRADED = st.lists(st.integers(0, 10).map(lambda tenths: tenths / 10), min_size=4, max_size=4).filter(
    lambda r: len(set(r)) > 1
)
REPLIES = ["open(a)", "list()", "submit(73)", "read() and then open(b)"]


@settings(max_examples=12, deadline=None)
@given(rewards=st.tuples(GRADED, GRADED), moved=st.integers(0, 7))
@example(rewards=([0.0, 0.5, 0.5, 1.0], [0.1, 0.2, 0.3, 0.2]), moved=1)
@pytest.mark.parametrize(("mode", "loss_type"), MODES)
def test_value_and_gradient_of_an_update_with_graded_rewards_and_ties(trained, mode, loss_type, rewards, moved):
    """Also of 4 rewards of which some equal their mean. A reward that moves by .0001 moves the gradient as little."""
    sizes, gradients = [], []
    for change in (0.0, 1e-4):
        earned = [*rewards[0], *rewards[1]]
        earned[moved] += change
        policy = copied(trained)
        episodes = [one_step(policy, i // 4, REPLIES[i % 4], reward=reward) for i, reward in enumerate(earned)]
        optimizer = torch.optim.SGD(policy.model.parameters(), lr=1.0)
        how = {"aggregation": mode, "normalize_std": False, "max_grad_norm": 1e9}
        value = update(policy, optimizer, episodes, **how)["train/loss"]
        after = torch.cat([p.detach().flatten() for p in policy.model.parameters()])

        plain = copied(trained)
        batch = plain.batch([t.sequences[0] for t in episodes])
        logp, _ = plain.score(batch, 1.0)
        advantages = (torch.tensor(earned).view(2, 4) - torch.tensor(earned).view(2, 4).mean(1, keepdim=True)).flatten()
        how = {"loss_type": loss_type, "epsilon_low": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "token"}
        expected = trl_loss(logp, logp.detach(), logp.detach(), advantages, batch.action_mask, None, **how)
        expected.backward()
        before = torch.cat([p.detach().flatten() for p in trained.model.parameters()])
        gradient = torch.cat([p.grad.flatten() for p in plain.model.parameters()])
        assert value == pytest.approx(float(expected.detach()), abs=1e-6)
        torch.testing.assert_close(before - after, gradient, atol=2e-6, rtol=1e-3)
        gradients.append(before - after)
        sizes.append(float(gradient.norm()))
    assert float((gradients[1] - gradients[0]).norm()) < 1e-2 * max(*sizes, 0.1)
