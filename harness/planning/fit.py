"""Says why a training run does not fit its GPUs, and which changes would make it fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from eh_gym.errors import ConfigError
from harness.planning.episode_tokens import lengths_of
from harness.planning.memory import GB, Memory, memory_of
from harness.settings.plan import Plan

__all__ = ["refusal", "ways_to_fit"]


def ways_to_fit(plan: Plan, more_gpus: str = "--gpus {}") -> list[str]:
    """Returns changes that make a plan fit. Each was tried. The list is empty if none is enough.

    What changes nothing about the result comes first. A shorter context cuts episodes off, so it comes last.

    Args:
        plan: The plan that does not fit.
        more_gpus: How a command takes more GPUs.
    """
    config, memory, lengths = plan.train, memory_of(plan), lengths_of(plan)
    saving: list[tuple[str, dict[str, Any]]] = []
    if not config.gradient_checkpointing:
        saving.append(("--gradient-checkpointing", {"gradient_checkpointing": True}))
    if config.dtype == "float32":
        saving.append(("--dtype bfloat16", {"dtype": "bfloat16"}))
    if config.tokens_per_microbatch > memory.longest:
        saving.append((f"--tokens-per-microbatch {memory.longest}", {"tokens_per_microbatch": memory.longest}))
    if config.sampler == "transformers":
        slots = min(config.slots or config.episodes_per_update, config.episodes_per_update)
        while slots > 1 and slots > plan.gpus:
            slots //= 2
            if memory_of(dataclasses.replace(plan, train=dataclasses.replace(config, slots=slots))).rollout_fits:
                saving.append((f"--slots {slots}", {"slots": slots}))
                break
    lora = ("--lora-rank 32", {"lora_rank": 32})
    share = ("--gpu-memory-utilization 0.4", {"gpu_memory_utilization": 0.4})
    rest: list[list[tuple[str, dict[str, Any]]]] = [[]]
    if not config.lora_rank:
        rest.append([lora])
    servers: list[tuple[str, dict[str, Any]]] = []
    if config.sampler == "vllm":
        there = {"sampler": "vllm-server", "url": "http://127.0.0.1:8000"}
        servers = [("--sampler vllm-server --url URL", there)]
        rest += [[share], servers]
        rest += [[lora, share], [lora, *servers]] if not config.lora_rank else []
    for context in _shorter(memory.longest, lengths.prompt + 2 * (lengths.action + lengths.observation)):
        words = f"--max-context {context} --tokens-per-microbatch {context}"
        cut = (words, {"max_context": context, "tokens_per_microbatch": context})
        steps = [*(step for step in saving if "--tokens" not in step[0]), cut]
        if _fits(plan, steps):
            rest.append(steps)
            break
    found: list[list[str]] = []
    for last in rest:
        for n in range(len(saving) + 1):
            steps = [*saving[:n], *(step for step in last if step not in saving[:n])]
            if steps and _fits(plan, steps):
                found.append([name for name, _ in steps])
                break
    for gpus in (2, 4, 8, 16, 32):
        if gpus <= plan.gpus:
            continue
        ways = [steps for steps in ([], saving, [*saving, *servers]) if _fits(plan, steps, gpus)]
        if ways:
            found.append([more_gpus.format(gpus), *(name for name, _ in ways[0])])
            break
    return [" ".join(names) for names in found if not any(set(other) < set(names) for other in found)]


def _shorter(longest: int, least: int) -> list[int]:
    """Returns shorter contexts to try, each two thirds of the one before and at least `least`, in hundreds of tokens."""
    found = []
    while (longest := longest * 2 // 3 // 100 * 100) >= least:
        found.append(longest)
    return found


def _fits(plan: Plan, steps: Sequence[tuple[str, dict[str, Any]]], gpus: int = 0) -> bool:
    changed = {name: value for _, change in steps for name, value in change.items()}
    try:
        train = dataclasses.replace(plan.train, **changed)
        return memory_of(dataclasses.replace(plan, gpus=gpus or plan.gpus, train=train)).fits
    except ConfigError:  # these changes contradict the run's other settings
        return False


def refusal(plan: Plan, memory: Memory, more_gpus: str = "--gpus {}") -> str:
    """Says why a plan cannot fit, and which changes would make it fit. See `ways_to_fit`."""
    server = sum(memory.server.values())
    if memory.needed > memory.available:
        text = f"this needs {memory.needed / GB:.1f} GB on each GPU and there are {memory.available / GB:.1f}"
    elif server > memory.available:
        text = f"a server needs {server / GB:.1f} GB for one longest episode and has {memory.available / GB:.1f}"
    else:
        text = (
            f"the sampler's cache cannot hold one episode of {memory.longest} tokens in addition to its weights; "
            "raise --gpu-memory-utilization or lower --max-context"
        )
    ways = ways_to_fit(plan, more_gpus)
    if not ways:
        return f"{text}; no single change is enough: lower --max-context, and train with --lora-rank on servers"
    return f"{text}; this would fit: " + "; or ".join(ways)
