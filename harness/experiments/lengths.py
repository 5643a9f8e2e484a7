"""How long the episodes of an environment are, in tokens and turns, as far as a plan must know it.

The numbers of real models come from their tokenizer where that is at hand; otherwise from a table of what was counted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from eh_gym.errors import ConfigError
from harness.experiments.simulate.lengths import PAPER
from harness.settings.plan import Plan

__all__ = ["Lengths", "lengths_of", "turns_of"]


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
