"""`python -m harness.plan`: prints the memory, tokens and FLOPs of a training run before anything is loaded.

It refuses a run that cannot fit. The speeds have not been measured on a GPU by this project, so you have to give them if the
plan is to say hours.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from eh_gym.errors import ConfigError
from harness.planning.episode_tokens import lengths_of
from harness.planning.fit import refusal
from harness.planning.memory import GB, memory_of
from harness.planning.update_time import operations_markdown
from harness.planning.work import Work, work_of
from harness.policy.shape import ModelShape, shape_of
from harness.settings.command_line import errors_in_one_line, parse
from harness.settings.grpo import FIRST_FLAGS, GRPOConfig
from harness.settings.old_flags import with_current_names
from harness.settings.plan import Plan
from harness.settings.presets import preset

__all__ = ["default_for", "main", "show"]


def show(plan: Plan, console: Console) -> None:
    """Prints the plan.

    Raises:
        ConfigError: The run cannot fit. The message names changes that would make it fit.
    """
    config, shape, lengths = plan.train, shape_of(plan.train.model), lengths_of(plan)
    memory, work = memory_of(plan), work_of(plan)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(
        f"{config.model}: {shape.parameters:,} parameters, {shape.layers} layers, width {shape.width}, "
        f"{shape.vocab:,} words; {config.dtype}, {_trained(config, shape)}, sampler {config.sampler}"
    )
    say(f"{plan.gpus} x {plan.gpu_gb:g} GB, {plan.reserve_gb:g} GB of each reserved; GB on one GPU:")
    if plan.gpus > 1:
        say("(FSDP2 divides weights, KL reference, gradients and moments among the GPUs)")
    for name, parts in (("rollout", memory.rollout), ("update", memory.update)):
        say(f"  {name:44}{sum(parts.values()) / GB:8.1f}")
        for part, value in parts.items():
            say(f"    {part:42}{value / GB:8.1f}")
    if memory.host:
        say(f"  AdamW moments, on the host during the rollout {memory.host / GB:7.1f}")
    for part, value in memory.server.items():
        say(f"  on each server: {part:28}{value / GB:8.1f}")
    larger = "update" if sum(memory.update.values()) >= sum(memory.rollout.values()) else "rollout"
    say(f"  the {larger} needs the most; there are {memory.available / GB:.1f} GB")
    recomputed = "all but attention's outputs" if memory.keeps_attention else "everything, attention too"
    say(
        f"micro-batches of {memory.tokens:,} tokens; the longest episode may have {memory.longest:,}; "
        + (f"layers compute again: {recomputed}" if config.gradient_checkpointing else "gradient checkpointing off")
    )
    if memory.sequences is not None:
        say(f"the sampler's cache holds {max(0.0, memory.sequences):.1f} of the longest episodes at once")
    say(
        f"an update: {config.tasks_per_update} x {config.group_size} episodes, {work.turns:.1f} turns at K = {plan.counted_k}, "
        f"{work.tokens / 1e6:.2f} M tokens, of which {work.sampled / 1e6:.2f} M are sampled"
    )
    say(
        f"  prompt {lengths.prompt}, action {lengths.action}, observation {lengths.observation} tokens: {lengths.source}"
    )
    say(f"  {work.flops / 1e15:.3g} PFLOP in the policy update")
    _hours(plan, work, say)
    if plan.operations:
        say("an update on each GPU, on paper; the transfers between GPUs are left out:")
        say(operations_markdown(plan, episode_tokens=plan.episode_tokens))
    if not memory.fits:
        raise ConfigError(refusal(plan, memory))


def _trained(config: GRPOConfig, shape: ModelShape) -> str:
    if not config.lora_rank:
        return "all trained"
    return f"LoRA of rank {config.lora_rank} trained ({shape.lora_parameters(config.lora_rank):,} parameters)"


def _hours(plan: Plan, work: Work, say: Any) -> None:
    updates = plan.train.updates
    speed = plan.sample_tokens_per_s
    if speed:
        say(
            f"rollouts: {updates * work.sampled / speed / 3600:.1f} hours, {updates} updates at {speed:g} tokens/s as given"
        )
    else:
        say("rollouts: hours unknown, because the speed is not measured; give --sample-tokens-per-s")
    if plan.train_tokens_per_s:
        seconds, why = work.tokens / plan.train_tokens_per_s, f"at {plan.train_tokens_per_s:g} tokens/s as given"
    elif plan.mfu:
        seconds = work.flops / (plan.mfu * plan.peak_tflops * 1e12 * plan.gpus)
        why = f"if {plan.mfu:.0%} of {plan.gpus} x {plan.peak_tflops:g} TFLOP/s is reached, which is assumed"
    else:
        say(
            "updates: hours unknown, because the speed is not measured; give --train-tokens-per-s, or assume a share with --mfu"
        )
        return
    say(f"updates: {updates * seconds / 3600:.1f} hours, {updates} updates {why}")


def default_for(words: Sequence[str]) -> Plan:
    """Returns the defaults for a command line. Its first word is a recipe if it is not a flag."""
    if words and not words[0].startswith("-"):
        return Plan(file=words[0], train=preset(["--recipe", words[0], *words[1:]]))
    return Plan(train=preset(words))


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    words = with_current_names(sys.argv[1:] if argv is None else argv, "plan")
    console = Console()
    with errors_in_one_line(console):
        default = default_for(words)
        plan = parse(default, words, prog="python -m harness.plan", first=(*FIRST_FLAGS, *vars(default)))
        if plan.file != default.file:
            raise ConfigError(f"the recipe {plan.file} must come first: python -m harness.plan {plan.file} --gpus 8")
        if plan.file and plan.train.recipe != Path(plan.file):
            raise ConfigError(f"there are two recipes, {plan.file} and --recipe {plan.train.recipe}; leave one out")
        show(plan, console)


if __name__ == "__main__":
    main()
