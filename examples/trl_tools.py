#!/usr/bin/env python
"""TRL's own tool calls under an elastic limit: `ElasticToolCalls` on EH-Cabinet and on gymnasium's Taxi.

This command draws the figure, from K0 = 10 and from K0 = 50 (one CPU core, an hour or more, because TRL computes the
whole conversation again in each round):

    python examples/trl_tools.py --out docs/images/k-in-trl.svg

A new tiny Qwen2 first clones an expert, whose actions are tool calls in Qwen2.5's template. It stops early, so that
there is something left to learn. Then `GRPOTrainer` plays and trains it through `environment_factory`. Nothing of TRL
is replaced.
"""

from __future__ import annotations

import copy
import functools
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
import tyro
from datasets import Dataset
from drawing import Log, Logs, Runs, draw_k_and_success, train_all
from gymnasium.envs.toy_text.taxi import TaxiEnv
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2ForCausalLM
from transformers.utils import get_json_schema

from eh_gym import ElasticHorizon
from eh_gym.integrations.tools import ToolEnvironment
from eh_gym.integrations.trl import ElasticToolCalls
from harness.model.fresh import fresh_qwen2

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
Message = dict[str, Any]


@dataclass(frozen=True)
class Settings(Runs):
    """The settings of the runs."""

    envs: tuple[str, ...] = ("EH-Cabinet-v0", "Taxi")
    """The environments to train on, one after the other."""
    clone_until: float = 0.015
    """The mean loss of ten batches, in nats per token, at which the clone is good enough."""
    updates: int = 40
    """The number of GRPO updates."""


class Cabinet(ToolEnvironment):
    """EH-Cabinet. The model acts with the tool `act`."""

    def __init__(self) -> None:
        super().__init__("EH-Cabinet-v0")

    def _expert(self) -> Message:  # not a tool, because of its underscore
        return {"name": "act", "arguments": {"action": self._env.unwrapped.expert()}}


class Taxi:
    """gymnasium's Taxi as any user of TRL would write it. A taxi fetches a passenger and brings them to a place."""

    MOVES = ("south", "north", "east", "west", "pickup", "dropoff")
    PLACES = ("red", "green", "yellow", "blue", "taxi")

    def __init__(self) -> None:
        self._env = TaxiEnv()

    def reset(self, seed: int = 0, **_: Any) -> str:
        """Starts an episode with the seed of a row."""
        self._state = int(self._env.reset(seed=seed)[0])
        self.ended, self.steps = False, 0
        return self._where()

    def _where(self) -> str:
        row, column, passenger, target = self._env.decode(self._state)
        return f"row {row} column {column} passenger {self.PLACES[passenger]} to {self.PLACES[target]}"

    def drive(self, move: str) -> str:
        """Does one thing with the taxi.

        Args:
            move: south, north, east, west, pickup or dropoff.

        Returns:
            Where the taxi is, where the passenger is, and where the passenger wants to go.
        """
        if not self.ended:
            self.steps += 1
            if move in self.MOVES:
                state, _, self.ended, _, _ = self._env.step(self.MOVES.index(move))
                self._state = int(state)
        return self._where()

    def get_reward(self) -> float:
        """1 if the passenger has arrived."""
        return float(self.ended)

    def _expert(self) -> Message:
        return {"name": "drive", "arguments": {"move": self.MOVES[shortest_moves()[self._state]]}}


@functools.cache
def shortest_moves() -> list[int]:
    """The taxi's move on a shortest way, for each of its 500 states."""
    outcomes = TaxiEnv().P  # state -> move -> [(probability, next state, reward, ended)]
    moves_left = np.full(len(outcomes), np.inf)
    while True:
        after = [[0.0 if end else moves_left[to] for ((_, to, _, end),) in of.values()] for of in outcomes.values()]
        before, moves_left = moves_left, 1 + np.min(after, axis=1)
        if np.array_equal(before, moves_left):
            return [int(move) for move in np.argmin(after, axis=1)]


ENVIRONMENTS: dict[str, tuple[type[Cabinet] | type[Taxi], str, float]] = {
    "EH-Cabinet-v0": (Cabinet, "act", 7e-4),
    "Taxi": (Taxi, "drive", 3e-4),  # with 7e-4 the agent forgot how to drive before K0 = 10 had shown it 20 successes
}
"""The class of each environment, the name of its tool, and the learning rate."""


def demonstrate(environment: Cabinet | Taxi, tool: str, seed: int) -> list[Message]:
    """An episode of the expert as a conversation in TRL's form."""
    messages: list[Message] = [{"role": "user", "content": environment.reset(seed=seed)}]
    while not environment.ended:
        call = environment._expert()
        messages.append({"role": "assistant", "tool_calls": [{"type": "function", "function": call}]})
        messages.append({"role": "tool", "name": tool, "content": getattr(environment, tool)(**call["arguments"])})
    return [*messages, {"role": "assistant", "content": "done"}]


def new_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer for these texts. A digit, a line break and a letter that stands alone are always
    tokens.
    """
    made = Tokenizer(models.BPE())
    alone = pre_tokenizers.Split(Regex(r"\d|\n|\b[A-Za-z]\b"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([alone, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=800,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")


@functools.lru_cache(1)
def cloned(env: str, until: float, seed: int) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """A tiny Qwen2 that has learnt the expert's calls to a mean loss of `until` nats per token, and its tokenizer."""
    make, tool, _ = ENVIRONMENTS[env]
    environment = make()
    episodes = [demonstrate(environment, tool, 10_000 + i) for i in range(1500)]
    tools = [get_json_schema(getattr(environment, tool))]
    template = (TEMPLATES / "qwen2_5.jinja").read_text("utf-8")
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=template)
    tokenizer = new_tokenizer(plain.apply_chat_template(e, tools=tools, tokenize=False) for e in episodes[:100])
    # TRL's variant of the template marks what the assistant wrote. The clone learns that alone.
    marking = (TEMPLATES / "qwen2_5_training.jinja").read_text("utf-8")
    told = {"tools": tools, "chat_template": marking, "return_dict": True, "return_assistant_tokens_mask": True}
    whole = [tokenizer.apply_chat_template(episode, **told) for episode in episodes]
    whole.sort(key=lambda episode: len(episode["input_ids"]))  # neighbours need little padding
    tokenizer.chat_template = template

    model = fresh_qwen2(
        len(tokenizer),
        width=64,
        ffn=160,
        layers=2,
        heads=2,
        kv_heads=2,
        positions=8192,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        initializer_range=0.1,  # with the usual 0.02, such a narrow model does not learn
        seed=seed,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rng = np.random.default_rng(seed)
    losses: list[float] = []
    while len(losses) < 10 or np.mean(losses[-10:]) > until:
        first = rng.integers(len(whole) - 15)
        batch = whole[first : first + 16]
        ids = torch.full((16, len(batch[-1]["input_ids"])), tokenizer.pad_token_id)
        labels = torch.full_like(ids, -100)
        for row, episode in enumerate(batch):
            ids[row, : len(episode["input_ids"])] = torch.tensor(episode["input_ids"])
            written = torch.tensor(episode["assistant_masks"]).nonzero()[:, 0]
            labels[row, written] = ids[row, written]
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, tokenizer


def train(settings: Settings, env: str, k0: int, seed: int) -> Log:
    """Trains one run; returns TRL's log, with one row per update."""
    torch.set_num_threads(1)
    make, _, learning_rate = ENVIRONMENTS[env]
    model, tokenizer = copy.deepcopy(cloned(env, settings.clone_until, seed))
    rows = settings.updates * settings.tasks_per_update
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=None,  # the environments have a `get_reward`
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(
                [{"prompt": [{"role": "user", "content": ""}], "seed": 1_000_000 * (seed + 1) + i} for i in range(rows)]
            ),
            environment_factory=make,
            args=trl.GRPOConfig(
                output_dir=folder,
                max_steps=settings.updates,
                num_generations=settings.group_size,
                per_device_train_batch_size=settings.tasks_per_update * settings.group_size,
                max_completion_length=4096,
                learning_rate=learning_rate,
                lr_scheduler_type="constant",
                adam_beta2=0.99,
                seed=seed,
                use_cpu=not torch.cuda.is_available(),
                bf16=False,
                gradient_checkpointing=None,  # off, without the warning that transformers 5.23 has for False
                logging_steps=1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
        )
        ElasticToolCalls(trainer, ElasticHorizon(k0=k0, min_successes=settings.min_successes))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return [row for row in trainer.state.log_history if "horizon/k" in row]


def main(argv: Sequence[str] | None = None) -> Logs:
    """Trains every run, prints how each ended, and draws them."""
    settings = tyro.cli(Settings, args=argv)
    logs = train_all(functools.partial(train, settings), settings.envs, settings.k0, settings.seeds)
    if settings.out is not None:
        draw_k_and_success(logs, "ElasticToolCalls in TRL's GRPOTrainer", "horizon/k", settings.out)
    return logs


if __name__ == "__main__":
    main(sys.argv[1:])
