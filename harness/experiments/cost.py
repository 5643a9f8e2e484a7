"""Computes the memory, tokens and FLOPs of a training run before anything is loaded.

Everything follows from the settings and the model's shape. docs/plan.md has the formulas. With several GPUs, weights, gradients
and moments are divided among them, as in `harness.policy.ranks` (FSDP2). `--reserve-gb` accounts for memory that the allocator
loses to fragmentation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eh_gym.errors import ConfigError
from harness.experiments.simulate.lengths import PAPER
from harness.policy.shape import ModelShape, shape_of
from harness.settings.grpo import GRPOConfig
from harness.settings.plan import Plan
from harness.settings.sampling import engine_rank

__all__ = [
    "GB",
    "Lengths",
    "Memory",
    "Plan",
    "Work",
    "lengths_of",
    "memory_of",
    "mends",
    "refusal",
    "turns_of",
    "work_of",
]

GB = 1e9
_BYTES = {"float32": 4, "bfloat16": 2}
_CHUNK_LOGITS, _CHUNK_TOKENS = 2**24, 512  # as in harness/policy/head.py


@dataclass(frozen=True)
class Lengths:
    """The numbers of tokens in an episode.

    Attributes:
        prompt: The mean number of tokens of a task's prompt.
        action: The mean number of tokens that the model writes in a turn.
        observation: The mean number of tokens that it reads in a turn.
        law: The distribution of the turns of a success, a key of `harness.experiments.simulate.lengths.PAPER`. None if every
            episode goes on to K.
        source: A text that says where the numbers come from.
    """

    prompt: int
    action: int
    observation: int
    law: str | None
    source: str


_LENGTHS: dict[str, Lengths] = {
    "EH-BFCL": Lengths(
        2350,
        84,
        35,
        "bfcl",
        "prompts and observations from BFCL's texts, four characters per token; actions assumed, P50 60, P90 170 "
        "(benchmarks/gpu_rollout.py); turns from the paper's quantiles",
    ),
    "EH-AppWorld": Lengths(
        3000, 150, 300, "appworld", "tokens assumed, not counted on AppWorld; turns from the paper's quantiles"
    ),
    "EH-Cabinet": Lengths(
        20, 4, 12, None, "assumed: about 7 tokens per action with its end; every episode goes on to K"
    ),
}


def lengths_of(plan: Plan) -> Lengths:
    """Returns the lengths of the environment from the table. Flags replace them.

    Raises:
        ConfigError: The environment is not in the table, and a flag is missing.
    """
    flags = {n: getattr(plan, f"{n}_tokens") for n in ("prompt", "action", "observation")}
    given = {n: v for n, v in flags.items() if v}
    for name, found in _LENGTHS.items():
        if plan.train.env.startswith(name):
            source = f"{', '.join(given)} as given; otherwise {found.source}" if given else found.source
            return dataclasses.replace(found, source=source, **given)
    if len(given) < len(flags):
        raise ConfigError(
            f"no lengths are known for {plan.train.env}; give --prompt-tokens, --action-tokens and --observation-tokens"
        )
    return Lengths(**flags, law=None, source="as given; every episode goes on to K")


def turns_of(plan: Plan) -> float:
    """Returns the mean number of turns of an episode. Successes follow the law, cut off at K; the others take K turns."""
    law = PAPER.get(lengths_of(plan).law or "")
    k = plan.horizon
    if law is None:
        return float(k)
    success = float(np.minimum(np.arange(1, len(law.p) + 1), k) @ law.p)
    return plan.success_rate * success + (1.0 - plan.success_rate) * k


@dataclass(frozen=True)
class Memory:
    """The memory of one GPU, in bytes.

    Attributes:
        update: The memory of each part during the policy update.
        rollout: The memory of each part during the rollout.
        server: What a sampler on a server needs: weights, and the keys and values of one longest episode. Empty without
            servers.
        longest: The number of tokens of the longest episode that must fit.
        tokens: The number of tokens of one micro-batch.
        sequences: The number of longest episodes that the sampler's cache holds at once; None if the cache has no fixed size.
        available: The memory that is available, without the reserve.
    """

    update: dict[str, float]
    rollout: dict[str, float]
    server: dict[str, float]
    longest: int
    tokens: int
    sequences: float | None
    available: float

    @property
    def fits(self) -> bool:
        """Whether the update and the rollout fit, and the sampler's cache holds one longest episode."""
        room = self.sequences is None or self.sequences >= 1
        return max(sum(self.update.values()), sum(self.rollout.values())) <= self.available and room


def memory_of(plan: Plan) -> Memory:
    """Computes the memory of one GPU by part; docs/plan.md has the formulas.

    Raises:
        ConfigError: The model's shape or the environment's lengths are not known.
    """
    config, shape, lengths = plan.train, shape_of(plan.train.model), lengths_of(plan)
    b, ranks = _BYTES[config.dtype], plan.gpus > 1
    if ranks and config.sampler == "vllm":
        raise ConfigError(
            "with several GPUs each one is a rank, and ranks have no --sampler vllm; give --sampler vllm-server --url URL, with "
            "--gpus for the trainer's GPUs only, or --sampler transformers"
        )
    longest = min(
        config.max_context or shape.positions,
        shape.positions,
        lengths.prompt + plan.horizon * (config.max_action_tokens + lengths.observation),
    )
    tokens = max(config.tokens_per_microbatch, longest)
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
    update = held | {"gradients": 4 * trained / plan.gpus} | _working(config, shape, tokens, lengths)
    if ranks:
        update["gathered layers"] = _gathered(shape, b)
    rollout, sequences, server = dict(held), None, {}
    apart = shape.lora_parameters(engine_rank(config.lora_rank)) if config.lora_handover == "adapters" else 0
    if config.sampler == "vllm":
        engine = config.gpu_memory_utilization * plan.gpu_gb * GB
        width = _BYTES[config.dtype if config.sampler_dtype == "auto" else config.sampler_dtype]
        weights = width * (shape.parameters / config.tensor_parallel + apart)
        cache = engine - weights
        sequences = cache / (shape.kv_bytes(width) / config.tensor_parallel * longest)
        rollout |= {"sampler's weights": weights, "sampler's KV cache": max(0.0, cache)}
        if config.async_steps:  # the engine does not sleep
            update |= {name: rollout[name] for name in ("sampler's weights", "sampler's KV cache")}
    else:
        kv = float(shape.kv_bytes(b) * longest)
        if config.sampler == "vllm-server":
            server = {"weights": float(b * (shape.parameters + apart)), "KV cache of one longest episode": kv}
        else:
            slots = min(config.slots or _episodes(config), _episodes(config))
            copies = {"sampler's weights": float(b * (shape.parameters + adapters))}
            copies = copies if config.async_steps or ranks else {}
            own = {"sampler's KV cache": kv * math.ceil(slots / plan.gpus)}
            rollout |= copies | own
            update |= copies | (own if config.async_steps else {})
    available = (plan.gpu_gb - plan.reserve_gb) * GB
    return Memory(update, rollout, server, longest, tokens, sequences, available)


def _episodes(config: GRPOConfig) -> int:
    return config.tasks_per_update * config.group_size


def _working(config: GRPOConfig, shape: ModelShape, tokens: int, lengths: Lengths) -> dict[str, float]:
    """Returns the memory of one micro-batch on one GPU: its activations, and what the output layer needs."""
    b, h, v = _BYTES[config.dtype], shape.width, shape.vocab
    layer = tokens * shape.layer_activation_bytes(b, config.lora_rank)
    kept = tokens * b * h * shape.layers + layer if config.gradient_checkpointing else shape.layers * layer
    chunk = max(_CHUNK_TOKENS, _CHUNK_LOGITS // v)
    # V H (4 + b): the gradient of the output layer itself, which does not exist with adapters.
    head = 8 * chunk * v + (2 * b * chunk * v if b < 4 else 0)
    head += 0 if config.lora_rank else v * h * (4 + (b if b < 4 else 0))
    written = tokens * lengths.action / (lengths.action + lengths.observation)
    return {
        "activations": float(kept),
        "backward pass in a layer": float(tokens * b * (2 * shape.ffn + 2 * h)),
        "logits chunk": head + b * written * h,
    }


def _gathered(shape: ModelShape, b: int) -> float:
    """Returns the bytes that `fully_shard` holds undivided on each GPU in the backward pass.

    These are the embedding and the output layer, the current layer, the next layer, which is being gathered, and the gradient
    of a layer, which is float32 when it is divided.
    """
    ends = shape.vocab * shape.width * (1 if shape.tied else 2)
    return float(b * (3 * shape.layer_parameters + ends) + 4 * shape.layer_parameters)


@dataclass(frozen=True)
class Work:
    """The work of one update, on all GPUs together.

    Attributes:
        turns: The mean number of turns of an episode.
        tokens: The number of tokens of all episodes.
        sampled: The number of those tokens that the model writes.
        flops: The FLOPs of the policy update, with those that are computed again.
    """

    turns: float
    tokens: float
    sampled: float
    flops: float


def work_of(plan: Plan) -> Work:
    """Computes the tokens and FLOPs of one update.

    A token at position p costs 6 P + 12 L A p FLOPs, forward and backward, where P is the number of the layers' parameters. With
    checkpointing, the forward pass is computed again (8 P + 16 L A p). A token that the model writes also costs 8 V H, because
    the output layer is always computed again. Frozen weights have no gradient (2 P and 2 V H less). A KL reference costs one
    more forward pass. The savings from shared prompts are not subtracted.
    """
    config, shape, lengths = plan.train, shape_of(plan.train.model), lengths_of(plan)
    turns, episodes = turns_of(plan), _episodes(config)
    length = lengths.prompt + turns * (lengths.action + lengths.observation)
    length = min(length, config.max_context or shape.positions)
    written = min(turns * lengths.action, length)
    again = 1 if config.gradient_checkpointing else 0
    passes = 3 + again + (1 if config.kl_coef else 0)  # of 2 P each
    frozen = 1 if config.lora_rank else 0
    layers = 2 * (passes - frozen) * shape.layers * shape.layer_parameters
    attention = 4 * passes * shape.layers * shape.queries * length / 2
    head = 2 * (passes - again + 1 - frozen) * shape.vocab * shape.width
    return Work(
        turns=turns,
        tokens=episodes * length,
        sampled=episodes * written,
        flops=episodes * (length * (layers + attention) + written * head),
    )


def mends(plan: Plan) -> list[str]:
    """Returns changes that make a plan fit. Each was tried. The list is empty if none is enough."""
    config = plan.train
    saving: list[tuple[str, dict[str, Any]]] = []
    if not config.gradient_checkpointing:
        saving.append(("--gradient-checkpointing", {"gradient_checkpointing": True}))
    if config.dtype == "float32":
        saving.append(("--dtype bfloat16", {"dtype": "bfloat16"}))
    longest = memory_of(plan).longest
    if config.tokens_per_microbatch > longest:
        saving.append((f"--tokens-per-microbatch {longest}", {"tokens_per_microbatch": longest}))
    lora = ("--lora-rank 32", {"lora_rank": 32})
    share = ("--gpu-memory-utilization 0.4", {"gpu_memory_utilization": 0.4})
    rest: list[list[tuple[str, dict[str, Any]]]] = [[]]
    if not config.lora_rank:
        rest.append([lora])
    servers: list[tuple[str, dict[str, Any]]] = []
    if config.sampler == "vllm":
        own = ("tensor_parallel", "gpu_memory_utilization", "sampler_dtype", "quantization")
        defaults = {name: getattr(GRPOConfig, name) for name in own}
        there = {"sampler": "vllm-server", "url": "http://127.0.0.1:8000", **defaults}
        servers = [("--sampler vllm-server --url URL", there)]
        rest += [[share], servers]
        rest += [[lora, *servers]] if not config.lora_rank else []
    found: list[list[str]] = []
    for last in rest:
        for n in range(len(saving) + 1):
            steps = [*saving[:n], *last]
            if steps and _fits(plan, steps):
                found.append([name for name, _ in steps])
                break
    for gpus in (2, 4, 8, 16, 32):
        steps = [*saving, *servers]
        if gpus > plan.gpus and _fits(dataclasses.replace(plan, gpus=gpus), steps):
            found.append([f"--gpus {gpus}", *(name for name, _ in steps)])
            break
    return [" ".join(names) for names in found if not any(set(other) < set(names) for other in found)]


def _fits(plan: Plan, steps: Sequence[tuple[str, dict[str, Any]]]) -> bool:
    changed = {name: value for _, change in steps for name, value in change.items()}
    return memory_of(dataclasses.replace(plan, train=dataclasses.replace(plan.train, **changed))).fits


def refusal(plan: Plan, memory: Memory) -> str:
    """Says why a plan cannot fit, and which changes would make it fit."""
    need = max(sum(memory.update.values()), sum(memory.rollout.values())) / GB
    if need > memory.available / GB:
        text = f"this needs {need:.1f} GB on each GPU and there are {memory.available / GB:.1f}"
    else:
        text = (
            f"the sampler's cache cannot hold one episode of {memory.longest} tokens in addition to its weights; "
            "raise --gpu-memory-utilization or --tensor-parallel, or lower --max-context"
        )
    ways = mends(plan)
    if not ways:
        return f"{text}; no single change is enough: lower --max-context, and train with --lora-rank on servers"
    return f"{text}; this would fit: " + "; or ".join(ways)
