"""Computes the tokens and FLOPs of an update before anything is loaded, from the settings and the model's shape.

docs/plan.md has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.planning.episode_tokens import lengths_of, turns_of
from harness.planning.memory import memory_of
from harness.policy.shape import shape_of
from harness.settings.plan import Plan

__all__ = ["Work", "work_of"]


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
    checkpointing, the forward pass is computed again (8 P + 16 L A p), attention only if its outputs do not fit (8 P + 12 L A p).
    A token that the model writes also costs 8 V H, because the output layer is always computed again. Frozen weights have no
    gradient (2 P and 2 V H less). A KL reference costs one more forward pass. The savings from shared prompts are not subtracted.
    """
    config, shape, lengths = plan.train, shape_of(plan.train.model), lengths_of(plan)
    turns, episodes = turns_of(plan), config.episodes_per_update
    length = lengths.prompt + turns * (lengths.action + lengths.observation)
    length = min(length, config.max_context or shape.positions, shape.positions)
    written = min(turns * lengths.action, length)
    again = 1 if config.gradient_checkpointing else 0
    passes = 3 + again + (1 if config.kl_coef else 0)  # of 2 P each
    frozen = 1 if config.lora_rank else 0
    layers = 2 * (passes - frozen) * shape.layers * shape.layer_parameters
    kept = again if memory_of(plan).keeps_attention else 0
    attention = 4 * (passes - kept) * shape.layers * shape.queries * length / 2
    head = 2 * (passes - again + 1 - frozen) * shape.vocab * shape.width
    return Work(
        turns=turns,
        tokens=episodes * length,
        sampled=episodes * written,
        flops=episodes * (length * (layers + attention) + written * head),
    )
