import math

import pytest
import torch

from harness.types.trajectory import LENGTH_BINS
from harness.update.mismatch import Mismatch


def filled():
    """Episodes of 10, 11 and 45 steps with 2, 1 and 1 tokens; a difference outside the mask counts nowhere."""
    mismatch = Mismatch()
    logp = torch.tensor([[-1.0, -1.0, -9.0], [-2.0, 0.0, 0.0]])
    sampled = torch.tensor([[-1.5, -1.25, 0.0], [-2.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    weights, capped = torch.tensor([[1.5, 1.0, 7.0], [2.0, 7.0, 7.0]]), torch.tensor([[False] * 3, [True] * 3])
    mismatch.add(logp, sampled, mask, [10, 11], weights, capped)
    one = torch.ones(1, 1, dtype=torch.bool)
    mismatch.add(torch.tensor([[-1.0]]), torch.tensor([[-2.0]]), one, [45], torch.tensor([[0.5]]), ~one)
    return mismatch


def test_by_hand():
    m = filled().metrics(weighted=True)
    assert m["train/logp_difference_max"] == 1.0
    assert m["train/logp_difference_mean"] == pytest.approx((0.5 + 0.25 + 0 + 1) / 4)
    by_bin = [m[f"train/logp_difference_{name}"] for name, _ in LENGTH_BINS]
    assert by_bin[:2] == pytest.approx([0.375, 0.0])
    assert math.isnan(by_bin[2])
    assert by_bin[3] == pytest.approx(1.0)
    assert m["train/tis_weight_mean"] == pytest.approx((1.5 + 1 + 2 + 0.5) / 4)
    assert m["train/tis_capped"] == pytest.approx(1 / 4)
    assert [m[f"train/tis_capped_{name}"] for name, _ in LENGTH_BINS][:2] == [0.0, 1.0]


def test_a_difference_of_nan_is_reported():
    mismatch, mask = filled(), torch.ones(1, 1, dtype=torch.bool)
    mismatch.add(torch.tensor([[math.nan]]), torch.tensor([[-1.0]]), mask, [1])
    found = mismatch.merged([filled()])
    assert math.isnan(found.metrics(weighted=False)["train/logp_difference_max"])
