import math

import pytest
import torch
from torch.testing import assert_close

from eh_gym.answers import MOST_REWARD
from harness.update.loss import group_advantages, importance_weights, kl_k3, policy_loss


def tensor(rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype)


class TestGroupAdvantages:
    def test_standard_deviation_is_the_populations(self):
        # Rewards 1 0 0 0: mean 1/4; variance (9/16 + 3 * 1/16) / 4 = 3/16, deviation sqrt(3)/4 (of a sample: 1/2).
        # (1 - 1/4) / (sqrt(3)/4) = sqrt(3); (0 - 1/4) / (sqrt(3)/4) = -1/sqrt(3).
        advantages = group_advantages(tensor([[1, 0, 0, 0]]), eps=0.0)
        assert_close(advantages, tensor([[3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]], torch.float32))

    @pytest.mark.parametrize("normalize_std", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("group_size", [1, 3, 7, 8, 49])
    def test_equal_rewards_give_exactly_zero(self, normalize_std, dtype, group_size):
        # The float32 mean of 0.7 seven times is 0.70000005; over eps = 1e-4 the difference would be an advantage of
        # -6e-4.
        values = tensor([0.0, 1.0, 0.1, 0.7, 1 / 3, -2.3, 1e8], dtype)
        advantages = group_advantages(values[:, None].repeat(1, group_size), normalize_std=normalize_std)
        assert torch.equal(advantages, torch.zeros_like(advantages))

    def test_rewards_that_differ_by_the_rounding_of_their_sums_are_equal(self):
        sums = tensor([[0.1 + 0.2, 0.3], [0.1 + 0.2 - 0.3, 0.0], [1e6, 1e6 + 0.5]])
        assert (group_advantages(sums) != 0).tolist() == [[False] * 2, [False] * 2, [True] * 2]

    def test_any_sum_of_rewards_has_a_finite_advantage(self):
        rewards = tensor([[MOST_REWARD * 1000, -MOST_REWARD * 1000, 0, 1]], torch.float32)
        assert_close(group_advantages(rewards), tensor([[2**0.5, -(2**0.5), 0, 0]], torch.float32))


class TestPolicyLoss:
    @pytest.mark.parametrize(
        ("ratio", "advantage", "expected", "expected_clipped"),
        [
            (1.0, 2.0, -2.0, False),  # -1.0 * 2
            (1.1, 2.0, -2.2, False),  # inside: -1.1 * 2
            (1.5, 2.0, -2.6, True),  # above and better than expected: -(1 + 0.3) * 2
            (0.5, 2.0, -1.0, False),  # below, but better than expected: may come back, -0.5 * 2
            (0.9, -2.0, 1.8, False),  # inside: 0.9 * 2
            (0.5, -2.0, 1.6, True),  # below and worse than expected: (1 - 0.2) * 2
            (1.5, -2.0, 3.0, False),  # above, but worse than expected: must come back, 1.5 * 2
            (1.5, 0.0, 0.0, False),
        ],
    )
    def test_one_token(self, ratio, advantage, expected, expected_clipped):
        old = tensor([[-1.5]])
        loss, clipped = policy_loss(
            old + math.log(ratio), old, tensor([advantage]), tensor([[True]], torch.bool), clip_low=0.2, clip_high=0.3
        )
        assert_close(loss, tensor([[expected]]))
        assert clipped.tolist() == [[expected_clipped]]

    @pytest.mark.parametrize("advantage", [1.0, -1.0])
    def test_tokens_outside_the_mask_are_zero_whatever_they_hold(self, advantage):
        logp = tensor([[-1.0, 800.0, -800.0, math.inf, -math.inf, math.nan]]).requires_grad_()
        mask = torch.tensor([[True] + [False] * 5])
        old = tensor([[-1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
        loss, clipped = policy_loss(logp, old, tensor([advantage]), mask)
        assert loss.tolist() == [[-advantage, 0.0, 0.0, 0.0, 0.0, 0.0]]
        assert clipped.tolist() == [[False] * 6]
        loss.sum().backward()
        assert logp.grad.tolist() == [[-advantage, 0.0, 0.0, 0.0, 0.0, 0.0]]  # d ratio / d logp = ratio = 1

    @pytest.mark.parametrize("advantage", [1.0, -1.0])
    def test_a_ratio_beyond_float32_gives_a_finite_gradient(self, advantage):
        # e^100 is inf in float32; where the clipping wins, the gradient through it would be 0 * inf.
        logp = torch.tensor([[0.0]], requires_grad=True)
        loss, _ = policy_loss(logp, torch.tensor([[-100.0]]), torch.tensor([advantage]), torch.tensor([[True]]))
        loss.sum().backward()
        assert torch.isfinite(loss).all()
        assert logp.grad.tolist() == [[0.0]]


def test_importance_weights_are_capped_and_1_outside_the_mask():
    ratio, mask = tensor([[3, 1, 0.25, 9]]), torch.tensor([[True, True, True, False]])
    weights, capped = importance_weights(ratio.log(), 0 * ratio, mask, cap=2.0)
    assert_close(weights, tensor([[2, 1, 0.25, 1]]))
    assert capped.tolist() == [[True, False, False, False]]


class TestKL:
    def test_prompt_tokens_with_tiny_probability_do_not_overflow(self):
        # The caller masks prompt tokens by multiplication, and their recorded log-probability is 0: e^100 * 0 is NaN.
        logp = torch.tensor([[-100.0]], requires_grad=True)
        kl = kl_k3(logp, torch.zeros(1, 1))
        (kl * torch.tensor([[False]])).sum().backward()
        assert torch.isfinite(kl).all()
        assert logp.grad.tolist() == [[0.0]]
