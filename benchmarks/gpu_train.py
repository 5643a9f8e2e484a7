"""The policy update with a real model's shape: tokens per second, MFU and peak memory, by episode length and by method.

    python benchmarks/gpu_train.py --shape 0.5b --lengths 4096 16384 32768
    python benchmarks/gpu_train.py --shape 7b --lengths 16384 --episodes 8 --checkpointing --lora-rank 32
    python benchmarks/gpu_train.py --smoke

The model is a Qwen2.5 shape with random weights. Groups have 8 episodes of the same length. The model writes half of each
episode. A quarter of the episode is the task's prompt, which a group has in common. The time covers everything from episodes
to stepped weights: batches, forward and backward passes, clipping, AdamW.

packed       one row; the prompt of a group is computed once
unshared     one row; every prompt is computed
padded       one row per episode; all episodes have one length, so nothing is padded: only the attention differs
plain        as unshared, with all logits of the written tokens held at once

MFU is model FLOPs / seconds / the device's peak. The model FLOPs of a token at position p, forward and backward, are

    6 P + 12 L A p          and 6 V H for each written token

Here P is the number of the layers' parameters, L the number of layers, A = heads x head width, V the number of words and H the
width. A parameter costs two FLOPs forward and four backward. The two products of attention cost 4 A p forward and twice that
backward. With --lora-rank the model's own weights have no gradient, so they cost 4 P and 4 V H, and the cost of the adapters
is not counted. Repeated computation (checkpointing, the chunked output layer) is no model FLOP. Nor is the computation that
sharing saves: tokens/s counts every token of each episode, and MFU only the tokens in the row. The peak is --peak-tflops. Its
default is 989 on an H100 or H200 (bfloat16, dense). On other devices there is no MFU.

On a GPU of 80 GB, 7b needs --lora-rank: all of its weights take 18 bytes each, 137 GB. Only the shape tiny runs without a GPU.
--smoke takes it. benchmarks/gpu_rollout.py measures sampling.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from flags import command, new_parser, parse, run
from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedModel

from eh_gym.errors import ConfigError
from harness.policy.attention import PACKED
from harness.policy.batch import microbatches, pack
from harness.policy.fresh import fresh_qwen2
from harness.policy.head import Head
from harness.policy.lora import add_lora, has_lora, plain_parameters
from harness.policy.policy import Policy
from harness.policy.shape import KNOWN, ModelShape
from harness.run.runtime import pick_device, pick_dtype
from harness.run.versions import cpu_name, package_versions
from harness.settings.grpo import GRPOConfig
from harness.training.optimizer import make_optimizer
from harness.training.update import update_policy
from harness.types.trajectory import Trajectory

GROUP = 8
WAYS = ("packed", "unshared", "padded", "plain")
SHAPES = {
    "tiny": ModelShape(512, 64, 128, 2, 2, 1, tied=True),
    "0.5b": KNOWN["Qwen2.5-0.5B"],
    "1.5b": KNOWN["Qwen2.5-1.5B"],
    "7b": KNOWN["Qwen2.5-7B"],
}


@dataclass(frozen=True)
class Figures:
    """The measurements of one update."""

    seconds: float
    tokens: int
    model_flops: float
    peak_bytes: int


def new_model(shape: str, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """Makes a model with random weights on its device, with positions for the longest episodes."""
    return fresh_qwen2(dataclasses.replace(SHAPES[shape], positions=131_072), eos_id=2, device=device, dtype=dtype)


def new_episodes(count: int, length: int, words: int) -> list[Trajectory]:
    """Makes groups of 8 episodes: a quarter is prompt, then 64 tokens are written for each 32 of observation."""
    found = []
    for i in range(count):
        task, own = np.random.default_rng(i // GROUP), np.random.default_rng(1000 + i)
        t = Trajectory(str(i // GROUP), i // GROUP, reward=float(i % 2))
        prompt = max(2, length // 4)
        t.add_prompt(task.integers(3, words, prompt).tolist())
        rest = length - prompt
        t.ids += own.integers(3, words, rest).tolist()
        t.action_mask += [int(j % 96 < 64) for j in range(rest)]  # 64 written, 32 observed: half of the episode
        t.logprobs += [-float(np.log(words)) * written for written in t.action_mask[prompt:]]
        found.append(t)
    return found


def model_flops(
    model: PreTrainedModel, episodes: list[Trajectory], tokens_per_microbatch: int, *, shared: bool
) -> float:
    """Returns the model FLOPs of an update, by the formula in the module's docstring."""
    config = model.config
    plain = sum(p.numel() for name, p in plain_parameters(model) if not name.startswith("lm_head"))
    layers = plain - config.vocab_size * config.hidden_size
    width = config.hidden_size  # heads x head width, in these shapes
    each = 4.0 if has_lora(model) else 6.0
    total = sum(each * config.vocab_size * config.hidden_size * t.action_tokens for t in episodes)
    if shared:
        parts = microbatches(episodes, tokens_per_microbatch)
        positions = [pack([episodes[i] for i in part]).position_ids for part in parts]
    else:
        positions = [torch.arange(len(t.ids)) for t in episodes]
    for p in positions:
        total += each * layers * p.numel() + 12.0 * config.num_hidden_layers * width * float(p.sum())
    return total


@contextlib.contextmanager
def set_up(model: PreTrainedModel, way: str) -> Iterator[None]:
    """Makes the update use the method `way`."""
    model.set_attn_implementation("sdpa" if way == "padded" else PACKED)
    with contextlib.ExitStack() as stack:
        if way != "packed":
            stack.enter_context(mock.patch("harness.policy.batch._LEAST_SHARED", sys.maxsize))
        if way == "plain":
            stack.enter_context(mock.patch("harness.policy.policy.token_scores", _plain_scores))
        yield


def _plain_scores(hidden: Tensor, targets: Tensor, head: Head, temperature: float) -> tuple[Tensor, Tensor]:
    # `Head.logits` has no gradient on a GPU: torch knows none for a matrix product into another type.
    logp = (linear(hidden, head.weight).float() / temperature).log_softmax(dim=1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(dim=1)
    return logp.gather(1, targets[:, None]).squeeze(1), entropy


def measure(model: PreTrainedModel, episodes: list[Trajectory], way: str, tokens: int, repeats: int) -> Figures:
    """Returns the median of some updates, after one that is not counted."""
    on_gpu = model.device.type == "cuda"
    nothing: Any = None
    tokenizer: Any = type("Tokenizer", (), {"pad_token_id": 0})()
    policy = Policy(model, tokenizer, nothing)
    optimizer = make_optimizer(model, learning_rate=1e-6, betas=(0.9, 0.999), weight_decay=0.01)
    settings = dataclasses.replace(GRPOConfig(model="x").loss_settings(), tokens_per_microbatch=tokens)
    seconds = []
    with set_up(model, way):
        for repeat in range(repeats + 1):
            if on_gpu:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            update_policy(policy, optimizer, episodes, settings, seed=repeat)
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        flops = model_flops(model, episodes, tokens, shared=way == "packed")
    return Figures(
        seconds=statistics.median(seconds[1:]),
        tokens=sum(len(t.ids) for t in episodes),
        model_flops=flops,
        peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else 0,
    )


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), default="0.5b")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16_384, 32_768], help="the tokens per episode")
    parser.add_argument("--episodes", type=int, default=16, help=f"the number of episodes, a multiple of {GROUP}")
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS))
    parser.add_argument("--tokens-per-microbatch", type=int, default=0, help="0 for the longest episode's tokens")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--lora-rank", type=int, default=0, help="the rank of the adapters; 0 trains all weights")
    parser.add_argument("--repeats", type=int, default=3, help="the number of updates, after one that is not counted")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--peak-tflops", type=float, default=0.0)
    args = parse(parser, shape="tiny", lengths=[64], episodes=8, device="cpu", dtype="float32", repeats=1)
    device = pick_device(args.device)
    if device == "cpu" and args.shape != "tiny":
        raise ConfigError(f"the shape {args.shape} needs a GPU; --smoke tries the script without one")
    model = new_model(args.shape, device, pick_dtype(args.dtype, device))
    if args.lora_rank:
        add_lora(model, args.lora_rank, seed=0)
    if args.checkpointing:
        nothing: Any = None
        Policy(model, nothing, nothing).checkpoint_activations()
    name = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else cpu_name()
    peak = args.peak_tflops or (989.0 if any(gpu in name for gpu in ("H100", "H200")) else 0.0)
    versions = {k: v for k, v in package_versions().items() if k in ("torch", "transformers")}
    print(command())
    print(
        f"{args.shape}, {args.dtype}, {args.episodes} episodes, checkpointing {args.checkpointing}, "
        f"LoRA rank {args.lora_rank}, {name}"
    )
    print(", ".join(f"{k} {v}" for k, v in versions.items()) + f", medians of {args.repeats} updates")
    print(f"{'length':>7}  {'way':9} {'seconds':>8} {'tokens/s':>9} {'TFLOP/s':>8} {'MFU':>6} {'peak GiB':>9}")
    for length in args.lengths:
        episodes = new_episodes(args.episodes, length, SHAPES[args.shape].vocab)
        budget = args.tokens_per_microbatch or length
        for way in args.ways:
            try:
                found = measure(model, episodes, way, budget, args.repeats)
            except torch.cuda.OutOfMemoryError:
                print(f"{length:7}  {way:9} out of memory")
                torch.cuda.empty_cache()
                continue
            speed = found.model_flops / found.seconds / 1e12
            mfu = f"{speed / peak:6.1%}" if peak else "     -"
            memory = f"{found.peak_bytes / 2**30:9.1f}" if found.peak_bytes else "        -"
            print(
                f"{length:7}  {way:9} {found.seconds:8.2f} {found.tokens / found.seconds:9.0f} {speed:8.2f} {mfu} {memory}"
            )


if __name__ == "__main__":
    run(main)
