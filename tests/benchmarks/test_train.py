"""The GPU benchmark of the policy update runs where there is no GPU, on a tiny model, and counts as its text says."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.policy.head import Head

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_train.py"


def test_every_way_of_the_gpu_benchmark_has_a_row(run: Callable[..., str]) -> None:
    out = run("gpu_train", "--smoke", "--tokens-per-microbatch", "999")
    rows = {m[1]: float(m[2]) * float(m[3]) for m in re.finditer(r"64  (\w+) +([\d.]+) +(\d+) ", out)}
    assert set(rows) == {"packed", "unshared", "padded", "plain"}
    assert all(tokens > 0 for tokens in rows.values())


def test_model_flops_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny shape, two episodes of one group."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    gpu_train = runpy.run_path(str(SCRIPT))
    model, episodes = gpu_train["new_model"]("tiny", "cpu", torch.float32), gpu_train["new_episodes"](2, 128, 512)
    shared, unshared = (gpu_train["model_flops"](model, episodes, 999, shared=s) for s in (True, False))
    # A layer: q and o 64 x 64, k and v 64 x 32, biases 128; three of 64 x 128; two norms of 64. And one norm at the end.
    layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 64 + 32 + 32 + 3 * 64 * 128 + 2 * 64) + 64
    written = 2 * 64  # 96 tokens after the prompt of 32, of which 64 are written
    head = 6 * 512 * 64 * written
    all_positions, own_positions = sum(range(128)), sum(range(32, 128))
    assert unshared == 6 * layers * 256 + 12 * 2 * 64 * 2 * all_positions + head
    assert shared == 6 * layers * (256 - 32) + 12 * 2 * 64 * (all_positions + own_positions) + head


class OnGPU(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


def test_plain_scores_have_a_gradient_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `Head.logits` have none there: the benchmark ended before the first row of this way."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    scores = runpy.run_path(str(SCRIPT))["_plain_scores"]
    hidden, weight = (torch.empty(n, 64, dtype=torch.bfloat16, device="meta", requires_grad=True) for n in (3, 500))
    targets = torch.empty(3, dtype=torch.int64, device="meta")
    logp, _ = scores(hidden.as_subclass(OnGPU), targets, Head(weight), 1.0)
    logp.sum().backward()
    assert hidden.grad is not None
    assert logp.dtype == torch.float32
