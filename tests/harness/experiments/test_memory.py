"""The plan's memory against a count of every tensor of a forward and a backward pass, on tensors without data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from harness.experiments.lengths import lengths_of
from harness.experiments.memory import memory_of
from harness.policy.attention import PACKED, Segments
from harness.policy.batch import Batch
from harness.policy.policy import Policy, score_batch
from harness.policy.shape import shape_of
from harness.quickstart.tiny import fresh_qwen2
from harness.settings.grpo import GRPOConfig
from harness.settings.plan import Plan

SHAPE = {  # Qwen2.5-7B's, with six layers
    "model_type": "qwen2",
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 6,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
}


def counted(plan: Plan, tokens: int) -> int:
    """The bytes at the peak of a micro-batch, with the model's weights and without what the optimizer holds."""
    lengths = lengths_of(plan)
    written = tokens * lengths.action // (lengths.action + lengths.observation)
    model = fresh_qwen2(shape_of(plan.train.model), eos_id=0, dtype=torch.bfloat16, device="meta").train()
    model.set_attn_implementation(PACKED)
    nothing: Any = None
    with FakeTensorMode():
        for owner in model.modules():
            for name, p in owner._parameters.items():
                if p is not None:
                    owner._parameters[name] = nn.Parameter(torch.empty(p.shape, dtype=p.dtype), p.requires_grad)
            for name, b in owner._buffers.items():
                if b is not None:
                    owner._buffers[name] = torch.empty(b.shape, dtype=b.dtype)
        if plan.train.gradient_checkpointing:
            Policy(model, nothing, nothing).checkpoint_activations()
        for (
            p
        ) in model.parameters():  # the float32 masters, which the plan counts by itself, take each gradient as it comes
            p.register_post_accumulate_grad_hook(lambda q: setattr(q, "grad", None))
        batch = Batch(
            torch.zeros(1, tokens, dtype=torch.long),
            torch.arange(tokens)[None],
            Segments([tokens], [-1], torch.device("cpu")),
            torch.arange(written),
            torch.zeros(written, dtype=torch.long),
            torch.ones(1, written, dtype=torch.bool),
            torch.zeros(1, written),
        )
        tracker: Any = MemTracker()
        tracker.track_external(model)
        with tracker, mock.patch("harness.policy.head._gpu_bytes", return_value=plan.gpu_gb * 1e9):
            score_batch(model, batch, 1.0)[0].sum().backward()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return int(snapshot["Total"])


@pytest.mark.parametrize(("checkpointing", "tokens"), [(True, 16_384), (False, 4096)])
def test_the_plan_is_within_a_tenth_of_the_count(tmp_path: Path, checkpointing: bool, tokens: int) -> None:
    """All weights are trained: torch's tracker fails on frozen ones."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    train = GRPOConfig(
        model=str(tmp_path),
        env="EH-BFCL-v0",
        dtype="bfloat16",
        gradient_checkpointing=checkpointing,
        max_context=tokens,
        tokens_per_microbatch=tokens,
    )
    plan = Plan(train=train)
    update = memory_of(plan).update
    planned = sum(
        value for name, value in update.items() if name not in ("float32 masters", "AdamW moments", "gradients")
    )
    assert planned == pytest.approx(counted(plan, tokens), rel=0.1)
