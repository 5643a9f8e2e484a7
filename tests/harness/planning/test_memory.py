"""The plan's memory against a count of every tensor of a forward and a backward pass, on tensors without data."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from harness.planning.episode_tokens import lengths_of
from harness.planning.memory import memory_of
from harness.policy.attention import PACKED, Segments
from harness.policy.batch import Batch
from harness.policy.fresh import fresh_qwen2
from harness.policy.lora import add_lora
from harness.policy.policy import Policy, score_batch
from harness.policy.shape import shape_of
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


class Peak(TorchDispatchMode):
    """The most bytes that all storages took at once, of those that were made inside it and those it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self._now = self.bytes = 0
        self._known: set[int] = set()

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self._now += storage.nbytes()
        self.bytes = max(self.bytes, self._now)

    def _free(self, which: int, size: int) -> None:
        self._known.remove(which)
        self._now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self.add, made)
        return made


def counted(plan: Plan, tokens: int) -> int:
    """The bytes at the peak of a micro-batch, with the model's weights and without what the optimizer holds."""
    lengths = lengths_of(plan)
    written = tokens * lengths.action // (lengths.action + lengths.observation)
    model = fresh_qwen2(shape_of(plan.train.model), eos_id=0, dtype=torch.bfloat16, device="meta").train()
    model.set_attn_implementation(PACKED)
    if plan.train.lora_rank:
        add_lora(model, plan.train.lora_rank, seed=0)
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
            Policy(model, nothing, nothing).checkpoint_activations(keep_attention=memory_of(plan).keeps_attention)
        for (
            p
        ) in model.parameters():  # the float32 masters, which the plan counts by itself, take each gradient as it comes
            if p.requires_grad:
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
        with Peak() as peak, mock.patch("harness.policy.head._gpu_bytes", return_value=plan.gpu_gb * 1e9):
            for p in model.parameters():
                peak.add(p)
            score_batch(model, batch, 1.0)[0].sum().backward()
    return peak.bytes


@pytest.mark.parametrize(
    ("checkpointing", "tokens", "lora_rank", "gpu_gb"),
    [(True, 16_384, 0, 80), (True, 16_384, 0, 60), (False, 4096, 0, 80), (True, 16_384, 32, 80), (False, 4096, 32, 80)],
)
def test_the_plan_is_within_a_tenth_of_the_count(
    tmp_path: Path, checkpointing: bool, tokens: int, lora_rank: int, gpu_gb: int
) -> None:
    if lora_rank:
        pytest.importorskip("peft")
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    train = GRPOConfig(
        model=str(tmp_path),
        env="EH-BFCL-v0",
        dtype="bfloat16",
        gradient_checkpointing=checkpointing,
        lora_rank=lora_rank,
        max_context=tokens,
        tokens_per_microbatch=tokens,
    )
    plan = Plan(train=train, gpu_gb=gpu_gb)
    assert memory_of(plan).keeps_attention == (checkpointing and gpu_gb == 80)
    update = memory_of(plan).update
    planned = sum(
        value for name, value in update.items() if name not in ("float32 masters", "AdamW moments", "gradients")
    )
    found = counted(plan, tokens)
    print(f"planned {planned / 1e9:.2f}, counted {found / 1e9:.2f} GB")
    assert planned == pytest.approx(found, rel=0.1)
