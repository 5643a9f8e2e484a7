"""The memory of one rank when a real model is trained on several, counted on any machine without that memory.

    python benchmarks/rank_memory.py

torch's own tracker for FSDP2 counts the bytes of every tensor through the forward and backward pass of one micro-batch. The
code is the code that ranks run. The tensors have shapes and no data (FakeTensorMode), and the other ranks do not exist (the
"fake" backend). So the allocator, the kernels' workspaces and the time are not measured. The table also has the prediction of
`harness.plan` by formula.
"""

from __future__ import annotations

import dataclasses
import tempfile
from types import MethodType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from flags import command, new_parser, parse, run
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2Config

from harness.planning.episode_tokens import lengths_of
from harness.planning.memory import memory_of
from harness.policy.attention import PACKED, Segments
from harness.policy.batch import Batch
from harness.policy.fresh import fresh_qwen2
from harness.policy.policy import Policy, score_batch
from harness.policy.ranks import Ranks
from harness.policy.shape import shape_of
from harness.settings.plan import Plan
from harness.settings.presets import preset

_PARTS = ("Sharded Param", "Sharded Grad", "OptState", "Unsharded Param", "Activation", "Temp")


def counted(plan: Plan, tokens: int) -> dict[str, int]:
    """Returns the bytes at the peak, for each of the tracker's own parts and as "Total"."""
    shape, lengths = shape_of(plan.train.model), lengths_of(plan)
    written = tokens * lengths.action // (lengths.action + lengths.observation)
    dist.init_process_group("fake", rank=0, world_size=plan.gpus, store=FakeStore())
    mesh = init_device_mesh("cpu", (plan.gpus,))  # this needs tensors with data
    with (
        FakeTensorMode(),
        mock.patch("harness.policy.ranks.init_device_mesh", return_value=mesh),
        mock.patch("harness.policy.head._gpu_bytes", return_value=plan.gpu_gb * 1e9),  # the GPU that is planned for
    ):
        model = fresh_qwen2(shape, eos_id=0, dtype=getattr(torch, plan.train.dtype)).train()
        model.set_attn_implementation(PACKED)
        policy: Any = Policy(model, tokenizer=None, chat=None)  # type: ignore[arg-type]
        if plan.train.gradient_checkpointing:
            policy.checkpoint_activations(keep_attention=memory_of(plan).keeps_attention)
        Ranks(0, plan.gpus, group=object()).shard(policy, "cpu")
        optimizer = torch.optim.AdamW(model.parameters())
        for p in model.parameters():
            optimizer.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            p.grad = torch.zeros_like(p)  # the gradient of an earlier micro-batch
        batch = Batch(
            torch.zeros(1, tokens, dtype=torch.long),
            torch.arange(tokens)[None],
            Segments([tokens], [-1], torch.device("cpu")),
            torch.arange(written),
            torch.zeros(written, dtype=torch.long),
            torch.ones(1, written, dtype=torch.bool),
            torch.zeros(1, written),
        )
        model.forward = MethodType(lambda self, b: score_batch(self, b, 1.0), model)  # the tracker looks here
        tracker: Any = FSDPMemTracker(model, optimizer)
        with tracker:
            model(batch)[0].sum().backward()
    dist.destroy_process_group()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return {str(getattr(part, "value", part)): size for part, size in snapshot.items()}


def small_model(folder: str) -> str:
    """Writes the configuration of a model of 150 million parameters into a folder, and returns the folder."""
    Qwen2Config(
        vocab_size=32_000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    ).save_pretrained(folder)
    return folder


def main() -> None:
    """Parses the command line and prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["Qwen2.5-7B", "Qwen2.5-14B"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[8])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--tokens", type=int, default=16_384, help="the tokens of a micro-batch, which is one episode")
    arguments = parse(parser, models=[], ranks=[2], tokens=1024)
    print(command())
    print(f"GB on one rank, a micro-batch of {arguments.tokens} tokens, gradient checkpointing; AdamW, servers sample")
    names = "".join(f"{part:>16}" for part in _PARTS)
    print(f"{'':28}{'plan':>8}{'counted':>9}{names}")
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models or [small_model(folder)]:
            for dtype in arguments.dtypes:
                for ranks in arguments.ranks:
                    train = dataclasses.replace(
                        preset(["--model", model]),
                        model=model,
                        env="EH-BFCL-v0",
                        dtype=dtype,
                        gradient_checkpointing=True,
                        sampler="vllm-server",
                        url="http://127.0.0.1:8000",
                        max_context=arguments.tokens,
                        tokens_per_microbatch=arguments.tokens,
                    )
                    plan = Plan(gpus=ranks, train=train)
                    found, planned = counted(plan, arguments.tokens), sum(memory_of(plan).update.values())
                    parts = "".join(f"{found.get(part, 0) / 1e9:16.1f}" for part in _PARTS)
                    print(
                        f"{model:13}{dtype:>9} x {ranks:<3}{planned / 1e9:8.1f}{found['Total'] / 1e9:9.1f}{parts}",
                        flush=True,
                    )


if __name__ == "__main__":
    run(main)
