"""What a policy update costs by operation on one GPU, on paper, and the MFU that follows.

Each operation computes or moves data, whichever takes longer. The shares of the peaks that it reaches are assumptions, taken from
what is published about H100s. Nothing of this was measured by this project. docs/plan.md has the table for Qwen2.5-7B.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.planning.episode_tokens import lengths_of
from harness.planning.memory import memory_of
from harness.planning.work import work_of
from harness.policy.shape import ModelShape, head_chunk, shape_of
from harness.settings.plan import Plan

__all__ = ["Operation", "UpdateTime", "operations_markdown", "update_time_of"]

# Shares of the peak that large bfloat16 matrix products and FlashAttention reach on an H100. FlashAttention-3's paper (arXiv
# 2407.08608) gives 35 % for version 2, and at least 1.5 times that for version 3, forward and backward. Elementwise kernels reach
# most of the memory's bandwidth.
_MATMUL, _MEMORY = 0.70, 0.80
_FLASH_2, _FLASH_3 = 0.35, 0.525
_BANDWIDTH = 3.35e12  # bytes/s of an H100's memory


@dataclass(frozen=True)
class Operation:
    """A part of the update, on one GPU.

    Attributes:
        name: What it is.
        flops: The FLOPs, with those that are computed again.
        moved: The bytes that it reads and writes; 0 for matrix products, which reuse what they read.
        seconds: How long it takes.
    """

    name: str
    flops: float
    moved: float
    seconds: float


@dataclass(frozen=True)
class UpdateTime:
    """An update on one GPU.

    Attributes:
        tokens: The tokens of its episodes.
        operations: Its parts, which follow one another.
        model_flops: The FLOPs that the mathematics needs: nothing is computed again.
        peak: The GPU's FLOP/s.
    """

    tokens: float
    operations: tuple[Operation, ...]
    model_flops: float
    peak: float

    @property
    def seconds(self) -> float:
        """How long the update takes."""
        return sum(operation.seconds for operation in self.operations)

    @property
    def mfu(self) -> float:
        """The model FLOPs by the time and the peak."""
        return self.model_flops / self.seconds / self.peak


def update_time_of(
    plan: Plan,
    *,
    episode_tokens: int = 0,
    fused: bool = True,
    flash_3: bool = False,
    bandwidth: float = _BANDWIDTH,
) -> UpdateTime:
    """Counts one update of a plan in bfloat16. The transfers between several GPUs are left out.

    Args:
        plan: The run.
        episode_tokens: The tokens of every episode; 0 takes the mean of the plan.
        fused: Whether norms, rotary positions and SwiGLU are one kernel each, as with ``--compile``. Otherwise each operation
            of transformers' code is a kernel.
        flash_3: Whether attention is FlashAttention 3 instead of 2.
        bandwidth: The bytes/s of the GPU's memory.
    """
    config, shape, lengths = plan.train, shape_of(plan.train.model), lengths_of(plan)
    episodes = config.episodes_per_update
    work, memory = work_of(plan), memory_of(plan)
    length = episode_tokens or work.tokens / episodes
    written = (
        length * lengths.action / (lengths.action + lengths.observation) if episode_tokens else work.sampled / episodes
    )
    tokens, scored = (episodes * each / plan.gpus for each in (length, written))
    again = 1 if config.gradient_checkpointing else 0
    trained, peak = (0 if config.lora_rank else 1), plan.peak_tflops * 1e12
    found: list[Operation] = []

    def add(name: str, flops: float, moved: float = 0.0, share: float = _MATMUL) -> None:
        found.append(Operation(name, flops, moved, flops / (share * peak) + moved / (_MEMORY * bandwidth)))

    linear = 2.0 * tokens * shape.layers * shape.layer_parameters
    attention = 4.0 * tokens * shape.layers * shape.queries * length / 2
    for name, passes in (("forward", 1), ("computed again", again), ("backward", 1 + trained)):
        if passes:
            add(f"linear layers, {name}", passes * linear)
    flash = _FLASH_3 if flash_3 else _FLASH_2
    add("attention, forward", attention, share=flash)
    if again and not memory.keeps_attention:
        add("attention, computed again", attention, share=flash)
    add("attention, backward", 2 * attention, share=flash)
    reference = 1 if config.kl_coef else 0
    if reference:
        add("KL reference, linear layers", linear)
        add("KL reference, attention", attention, share=flash)
    # Backward passes of elementwise operations read and write about twice as much as forward passes.
    for name, each in _elementwise(shape, fused=fused).items():
        add(name, 0.0, (3 + again + reference) * each * shape.layers * tokens)
    if config.lora_rank:
        adapters = 2.0 * tokens * shape.lora_parameters(config.lora_rank)
        add("adapters", (3 + again) * adapters, (3 + again) * _adapter_bytes(shape) * shape.layers * tokens)
    logits = scored * shape.vocab
    chunks = scored / head_chunk(shape.vocab, plan.gpu_gb * 1e9)
    # Float32 logits are read and written about six times, and with each chunk the gradient's float32 sum is, and its part.
    sums = trained * chunks * 12 * shape.vocab * shape.width
    add("output layer", (3 + trained + reference) * 2.0 * logits * shape.width, (24 + 4 * reference) * logits + sums)
    parameters = (shape.lora_parameters(config.lora_rank) or shape.parameters) / plan.gpus
    micro_batches = max(1.0, tokens / memory.tokens)
    add("sums of gradients", 0.0, micro_batches * 10 * parameters)  # a bfloat16 part is added to a float32 sum
    add("AdamW and clipping", 0.0, 42 * config.minibatches * parameters)
    model = (2 + trained + reference) / 3 * 6 * (tokens * shape.layers * shape.layer_parameters + logits * shape.width)
    return UpdateTime(tokens, tuple(found), model + (3 + reference) * attention, peak)


def _elementwise(shape: ModelShape, *, fused: bool) -> dict[str, float]:
    """The bytes that one token reads and writes in a layer's forward pass, in bfloat16.

    Unfused, transformers' RMSNorm is seven kernels, four of which handle float32: 36 bytes a number. Rotary positions are five
    kernels: 20 bytes. SwiGLU and a sum are two and one: 10 and 6. A fused kernel reads its inputs once and writes its output.
    """
    h, rotated, f = shape.width, shape.queries + shape.keys, shape.ffn
    norm, rotary, swiglu, residual = (4, 4, 6, 6) if fused else (36, 20, 10, 6)
    heads = norm * rotated if shape.head_norms else 0
    return {
        "norms": 2 * norm * h + heads,
        "rotary positions": rotary * rotated,
        "SwiGLU": swiglu * f,
        "residual sums": 2 * residual * h,
    }


def _adapter_bytes(shape: ModelShape) -> float:
    """The bytes that one token's adapters move in a layer: the input is read, and the output scaled and added."""
    h, a, kv, f = shape.width, shape.queries, shape.keys, shape.ffn
    inputs, outputs = 3 * h + a + 2 * h + f, a + 2 * kv + h + 2 * f + h
    return 2 * inputs + 12 * outputs


def operations_markdown(plan: Plan, *, episode_tokens: int = 0) -> str:
    """The table of docs/plan.md: seconds of an update without and with fused kernels, and with FlashAttention 3 as well."""
    ways: list[dict[str, bool]] = [{"fused": False}, {"fused": True}, {"fused": True, "flash_3": True}]
    found = [update_time_of(plan, episode_tokens=episode_tokens, **way) for way in ways]
    lines = [
        "| operation | PFLOP | TB moved, eager | s, eager | s, fused | s, fused, FlashAttention 3 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]

    def add(name: str, flops: float, moved: float, seconds: Iterable[float]) -> None:
        times = " | ".join(f"{each:.1f}" for each in seconds)
        lines.append(f"| {name} | {flops / 1e15:.2f} | {moved / 1e12:.2f} | {times} |")

    for same in zip(*(time.operations for time in found), strict=True):
        add(same[0].name, same[0].flops, same[0].moved, (operation.seconds for operation in same))
    eager = found[0].operations
    together = (sum(operation.flops for operation in eager), sum(operation.moved for operation in eager))
    add("**together**", *together, (time.seconds for time in found))
    speeds = (time.tokens / time.seconds for time in found)
    lines.append(f"| **tokens/s** | | | {' | '.join(f'{speed:,.0f}' for speed in speeds)} |")
    lines.append(f"| **MFU** | | | {' | '.join(f'{time.mfu:.1%}' for time in found)} |")
    return "\n".join(lines)
