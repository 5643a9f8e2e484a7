"""How long the episodes of an environment are, in tokens and turns, as far as a plan must know it.

On EH-Cabinet, those of a chat model whose folder is here are counted with its tokenizer and chat template, as its expert plays
them. All others are in a table.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np

from eh_gym.errors import ConfigError
from harness.planning.length_laws import PAPER
from harness.policy.installed import model_folder
from harness.settings.grpo import GRPOConfig
from harness.settings.plan import Plan

__all__ = ["Lengths", "lengths_of", "turns_of"]


@dataclass(frozen=True)
class Lengths:
    """The numbers of tokens in an episode.

    Attributes:
        prompt: The mean number of tokens of a task's prompt.
        action: The mean number of tokens that the model writes in a turn.
        observation: The mean number of tokens that it reads in a turn.
        law: The distribution of the turns of a success, a key of `harness.planning.length_laws.PAPER`. None if every
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
        "prompts and observations from BFCL's texts, four characters per token; actions assumed, P50 60, P90 170; "
        "turns from the paper's quantiles",
    ),
    "EH-AppWorld": Lengths(
        3000, 150, 300, "appworld", "tokens assumed, not counted on AppWorld; turns from the paper's quantiles"
    ),
    "EH-Cabinet": Lengths(
        20, 4, 12, None, "assumed: about 7 tokens per action with its end; every episode goes on to K"
    ),
}
_CHAT_CABINET = Lengths(
    216, 4, 12, None, "a chat model's, as SmolLM2's tokenizer counts the expert's episodes; every episode goes on to K"
)
_COUNTED = 32
"""The number of tasks that are counted."""


def lengths_of(plan: Plan) -> Lengths:
    """Returns the lengths of the environment's episodes. Flags replace them.

    Raises:
        ConfigError: The environment is not in the table, and a flag is missing.
    """
    flags = {n: getattr(plan, f"{n}_tokens") for n in ("prompt", "action", "observation")}
    given = {n: v for n, v in flags.items() if v}
    known = [_known(plan.train, env) for env in plan.train.environments()]
    if all(known):
        found = max(
            (one for one in known if one),
            key=lambda one: one.prompt + plan.counted_k * (one.action + one.observation),
        )
        longest = "of the environment with the longest episodes: " if len(known) > 1 else ""
        source = f"{', '.join(given)} as given; otherwise {longest}{found.source}" if given else longest + found.source
        return dataclasses.replace(found, source=source, **given)
    if len(given) < len(flags):
        raise ConfigError(
            f"no lengths are known for {plan.train.env}; give --prompt-tokens, --action-tokens and --observation-tokens"
        )
    return Lengths(**flags, law=None, source="as given; every episode goes on to K")


def _known(config: GRPOConfig, env: str) -> Lengths | None:
    """The lengths of one of the run's environments, if they are known."""
    name = next((name for name in _LENGTHS if env.rpartition(":")[2].startswith(name)), "")
    if name == "EH-Cabinet" and config.model != "tiny":
        return _cabinet(config if env == config.env else dataclasses.replace(config, env=env, env_args="{}"))
    return _LENGTHS.get(name)


@functools.lru_cache(maxsize=8)
def _cabinet(config: GRPOConfig) -> Lengths:
    """Counts the tokens of a chat model, if its tokenizer is on this machine."""
    folder = Path(model_folder(config.model))
    if not (folder / "tokenizer_config.json").is_file():
        return _CHAT_CABINET
    from transformers import AutoTokenizer

    from envs.expert import demonstrate
    from harness.policy.chat import ChatFormat
    from harness.settings.reasoning import read_template_kwargs

    chat = ChatFormat(
        AutoTokenizer.from_pretrained(folder), template_kwargs=read_template_kwargs(config.chat_template_kwargs)
    )
    env = gym.make(config.env, **config.environment_args())
    tasks = list(env.unwrapped.task_ids)  # type: ignore[attr-defined]
    prompts, actions, observations = [], [], []
    for task in tasks[:: -(-len(tasks) // _COUNTED)]:
        played = demonstrate(env, task, waste=0.0, max_steps=config.k_max, rng=np.random.default_rng(0))
        assert played is not None, "no task is too long without a limit"
        prompts.append(len(chat.prompt_ids(played.info["system_prompt"], played.observations[0])))
        actions += [len(chat.reply_ids(action)) for action in played.actions]
        observations += [len(chat.observation_ids(text, stopped=True)) for text in played.observations[1:]]
    prompt, action, observation = (round(float(np.mean(found))) for found in (prompts, actions, observations))
    source = f"counted with the model's tokenizer in {len(prompts)} episodes of the expert; every episode goes on to K"
    return Lengths(prompt, action, observation, None, source)


def turns_of(plan: Plan) -> float:
    """Returns the mean number of turns of an episode. Successes follow the law, cut off at K; the others take K turns."""
    law = PAPER.get(lengths_of(plan).law or "")
    k = plan.counted_k
    if law is None:
        return float(k)
    success = float(np.minimum(np.arange(1, len(law.p) + 1), k) @ law.p)
    return plan.success_rate * success + (1.0 - plan.success_rate) * k
