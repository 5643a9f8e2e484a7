"""Computes the memory of a training run before anything is loaded, from its settings and the model's shape.

docs/plan.md has the formulas. With several GPUs, weights, gradients and moments are divided among them, as in
`harness.policy.ranks` (FSDP2). `--reserve-gb` accounts for what CUDA, the kernels, vLLM's CUDA graphs and the allocator's
fragments take.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from eh_gym.errors import ConfigError
from harness.planning.episode_tokens import Lengths, lengths_of
from harness.policy.shape import ModelShape, head_chunk, shape_of
from harness.settings.grpo import GRPOConfig
from harness.settings.plan import Plan

__all__ = ["GB", "Memory", "attention_fits", "memory_of", "offloads"]

GB = 1e9
_BYTES = {"float32": 4, "bfloat16": 2, "auto": 2}  # auto is bfloat16 on a GPU
_ENGINE_TOKENS = 16_384  # of one step of vLLM's engine on a GPU of 70 GiB or more (`max_num_batched_tokens`)
_OUTPUTS = "attention's outputs"
_SPARE = (
    0.1  # of the memory, because the plan is within a tenth of a count; attention's outputs are kept only beside that
)
_SEND_BUFFERS = 2 * 2**30  # vLLM packs weights into two buffers of 1 GiB, on the sender's GPU and on the server's


@dataclass(frozen=True)
class Memory:
    """The memory of one GPU, in bytes.

    Attributes:
        update: The memory of each part during the policy update, at its peak.
        rollout: The memory of each part during the rollout and the hand-over of the weights.
        server: What a sampler on a server needs: weights, and the keys and values of one longest episode. Empty without
            servers.
        longest: The number of tokens of the longest episode that must fit, in training or in an evaluation.
        tokens: The number of tokens of one micro-batch.
        sequences: The number of longest episodes that the sampler's cache holds at once; None if the cache has no fixed size.
        available: The memory that is available, without the reserve.
        host: What each rank keeps in the host's memory during the rollout: AdamW's moments, with `--offload-optimizer`.
    """

    update: dict[str, float]
    rollout: dict[str, float]
    server: dict[str, float]
    longest: int
    tokens: int
    sequences: float | None
    available: float
    host: float = 0.0

    @property
    def keeps_attention(self) -> bool:
        """Whether `--gradient-checkpointing` keeps attention's outputs. Otherwise they are computed again."""
        return _OUTPUTS in self.update

    @property
    def needed(self) -> float:
        """The larger of the two sums."""
        return max(sum(self.update.values()), sum(self.rollout.values()))

    @property
    def rollout_fits(self) -> bool:
        """Whether the rollout fits."""
        return sum(self.rollout.values()) <= self.available

    @property
    def fits(self) -> bool:
        """Whether all of this fits: the update, the rollout, one longest episode in the engine's cache, and a server."""
        room = self.sequences is None or self.sequences >= 1
        return room and max(self.needed, sum(self.server.values())) <= self.available


def offloads(plan: Plan) -> bool:
    """Whether AdamW's moments leave the GPU for the rollout: as the setting says; auto: if the run fits only then."""
    setting = plan.train.offload_optimizer
    if setting != "auto" or plan.train.max_staleness:
        return setting == "on"
    off, on = (
        memory_of(dataclasses.replace(plan, train=dataclasses.replace(plan.train, offload_optimizer=way)))
        for way in ("off", "on")
    )
    return on.fits and not off.fits


def attention_fits(train: GRPOConfig, gpu_bytes: int, gpus: int = 1) -> bool:
    """Whether a run with `--gradient-checkpointing` keeps attention's outputs. It does not where it can't be planned: without a
    GPU (0 bytes), or with a model or environment whose sizes are not known.
    """
    try:
        return gpu_bytes > 0 and memory_of(Plan(gpus=gpus, gpu_gb=gpu_bytes / GB, train=train)).keeps_attention
    except ConfigError:
        return False


def memory_of(plan: Plan) -> Memory:
    """Computes the memory of one GPU by part; docs/plan.md has the formulas.

    Raises:
        ConfigError: The model's shape or the environment's lengths are not known.
    """
    config, shape, lengths = plan.train, shape_of(plan.train.model), lengths_of(plan)
    b, ranks = _BYTES[config.dtype], plan.gpus > 1
    trained, longest = (
        int(
            min(
                config.max_context or shape.positions,
                shape.positions,
                lengths.prompt + turns * (config.max_action_tokens + lengths.observation),
            )
        )
        for turns in (plan.trained_horizon, plan.played_horizon)
    )
    tokens = max(config.tokens_per_microbatch, trained)
    adapters = shape.lora_parameters(config.lora_rank)
    trained = adapters or shape.parameters
    wide = 4 if ranks else b  # shards are float32
    held: dict[str, float] = {"weights": wide * (shape.parameters + adapters)}
    if wide < 4:
        held["float32 masters"] = 4 * trained
    held["AdamW moments"] = 8 * trained
    if config.kl_coef and not adapters:
        held["KL reference"] = wide * shape.parameters
    held = {name: value / plan.gpus for name, value in held.items()}
    update = held | {"gradients": 4 * trained / plan.gpus} | _working(plan, shape, tokens, lengths)
    rollout, sequences, server = dict(held), None, {}
    host = rollout.pop("AdamW moments") if offloads(plan) else 0.0
    if ranks:  # for the sampler each weight is rounded and made whole, and the largest is the embedding
        rollout["gathered tensor"] = float(b * shape.vocab * shape.width)
    slots = math.ceil(min(config.slots or config.episodes_per_update, config.episodes_per_update) / plan.gpus)
    kv = float(shape.kv_bytes(b) * longest)
    if config.sampler == "vllm":
        weights = b * shape.parameters
        working = _engine_step(config, shape, b, slots)
        cache = config.gpu_memory_utilization * plan.gpu_gb * GB - weights - working
        sequences = cache / (shape.kv_bytes(b) * longest)
        engine = {"engine's weights": weights, "engine's step": working, "engine's KV cache": max(0.0, cache)}
        rollout |= engine
        if config.max_staleness:
            # The engine does not sleep. The copy that it takes its weights from is in the host's memory.
            update |= engine
    elif config.sampler == "vllm-server":
        server = {
            "weights": float(b * shape.parameters),
            "engine's step": _engine_step(config, shape, b, slots),
            "KV cache of one longest episode": kv,
            "weights on their way": float(_SEND_BUFFERS),
        }
        rollout["weights on their way"] = _SEND_BUFFERS
    else:
        copies = {"sampler's weights": float(b * (shape.parameters + adapters))}
        copies = copies if config.max_staleness or ranks else {}
        own = {"sampler's KV cache": kv * slots}
        rollout |= copies | own
        update |= copies | (own if config.max_staleness else {})
    available = (plan.gpu_gb - plan.reserve_gb) * GB
    outputs = float(tokens * shape.layers * (b * shape.queries + 4 * shape.heads))
    # float32 has kernels on a GPU whose outputs are not kept.
    checkpointed = config.gradient_checkpointing and b < 4
    if checkpointed and sum(update.values()) + outputs <= (1 - _SPARE) * available:
        update[_OUTPUTS] = outputs
    return Memory(update, rollout, server, longest, tokens, sequences, available, host)


def _engine_step(config: GRPOConfig, shape: ModelShape, b: int, sequences: int) -> float:
    """Returns what vLLM sets aside for a step after it has tried one: a layer's activations, and three times the logits."""
    layer = b * (3 * shape.ffn + 4 * shape.width)
    return float(_ENGINE_TOKENS * layer + 3 * 4 * sequences * shape.vocab)


def _working(plan: Plan, shape: ModelShape, tokens: int, lengths: Lengths) -> dict[str, float]:
    """Returns the memory of one micro-batch on one GPU at the peak of its backward pass.

    The pass begins in the output layer, and goes on layer by layer. The two never need their memory at the same time.
    """
    config, ranks = plan.train, plan.gpus > 1
    b, h, v = _BYTES[config.dtype], shape.width, shape.vocab
    layer = tokens * shape.layer_activation_bytes(b, config.lora_rank)
    kept = float(tokens * b * h * shape.layers if config.gradient_checkpointing else shape.layers * layer)
    written = tokens * lengths.action / (lengths.action + lengths.observation)
    chunk = min(head_chunk(v, plan.gpu_gb * GB), math.ceil(written))
    # The gradient of the output layer itself, which does not exist with adapters; rounded once it is complete.
    weight = 0 if config.lora_rank else v * h
    ends = b * v * h * (1 if shape.tied else 2) if ranks else 0  # gathered: the embedding and the output layer
    at_head = {
        "output layer": 8 * chunk * v
        + (2 * b * chunk * v if b < 4 else 0)
        + weight * (4 + (b if b < 4 else 0))
        + b * written * h,
        "gathered layers": float(ends),
    }
    at_layer = {
        "layer computed again": float(layer if config.gradient_checkpointing else 0),
        "backward pass in a layer": float(tokens * b * (2 * shape.ffn + 2 * h)),
        # `fully_shard` holds the current layer, the next one, which is being gathered, and gradients until they are divided.
        "gathered layers": float(ends + (3 * b + 4) * shape.layer_parameters + b * weight) if ranks else 0.0,
    }
    peak = max(at_head, at_layer, key=lambda parts: sum(parts.values()))
    return {"activations": kept} | {name: value for name, value in peak.items() if value}
