"""Sampled tokens per CPU-second of whole updates: this harness beside TRL's GRPOTrainer, without a GPU.

    OMP_NUM_THREADS=1 python benchmarks/trl_cpu.py smollm2-135m > benchmarks/results/trl-cpu.txt

An update plays a task of EH-Cabinet 8 times, 6 messages of at most 24 tokens each, and trains all weights. Both sides
have float32 weights, temperature 1, one thread, AdamW, and means over tokens without KL; neither computes activations
again. Times are this process's CPU seconds. The sides take turns, and their first updates do not count.

TRL samples with `generate`. Its prompts leave out the tool's schema, and each message counts as a call, so both sides
play the same episodes. Half of them get reward 1, whatever they did.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
import trl
from datasets import Dataset
from flags import load_model, new_parser, parse, print_heading, run
from transformers import PrinterCallback, TrainerCallback

from eh_gym import FixedHorizon
from eh_gym.integrations.tools import ToolEnvironment
from harness.rollout.environment import Environments
from harness.rollout.rollout import rollout
from harness.sampling.transformers import TransformersSampler
from harness.settings.loss import Loss
from harness.settings.optimizer import Optimizer
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.update.optimizer import make_optimizer
from harness.update.update import update_policy

GROUP, MESSAGES, TOKENS = 8, 6, 24
CHAT = """{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}\
{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
members = itertools.count()


class Cabinet(ToolEnvironment):
    """EH-Cabinet, whose every second episode is rewarded."""

    def __init__(self) -> None:
        super().__init__("EH-Cabinet-v0", split="train")
        self._reward = float(next(members) % 2)

    def get_reward(self) -> float:
        """Whatever happened."""
        return self._reward


def call(tokenizer: Any, ids: list[int], **_: Any) -> dict[str, Any]:
    """Any reply as a tool call."""
    function = {"name": "act", "arguments": {"action": tokenizer.decode(ids, skip_special_tokens=True)}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


class Timed(trl.GRPOTrainer):
    """Notes the time and the tokens of a rollout."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        start = time.process_time()
        made = super()._generate_and_score_completions(inputs)
        written = int((made["tool_mask"] * made["completion_mask"]).sum())
        self.row = [time.process_time() - start, written, int(made["prompt_mask"].sum() + made["completion_mask"].sum())]
        return made


class TakeTurns(TrainerCallback):
    """Makes an update of the harness after each of TRL's."""

    def __init__(self, trainer: Timed, args: Any) -> None:
        self.rows: list[tuple[list[float], list[float]]] = []
        self._trainer = trainer
        self._policy = load_model(args)
        self._sampler = TransformersSampler(self._policy.model)
        self._optimizer = make_optimizer(self._policy.model, Optimizer())
        self._envs = Environments("EH-Cabinet-v0", {"split": "train"}, slots=GROUP, threads=0).open(FixedHorizon(MESSAGES))

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """TRL's update begins."""
        self._start = time.process_time()

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """TRL's update has ended."""
        played_s, *tokens = self._trainer.row
        theirs = [played_s, time.process_time() - self._start - played_s, *tokens]
        start, task, limits = time.process_time(), f"train-{len(self.rows):06d}", Rollout(max_action_tokens=TOKENS)
        requests = [EpisodeRequest(task, 0, seed) for seed in range(GROUP)]
        episodes = rollout(self._envs, self._sampler, self._policy.chat, requests, limits)
        for i, episode in enumerate(episodes):
            episode.reward = float(i % 2)
        played_s = time.process_time() - start
        update_policy(
            self._policy, self._optimizer, episodes, Loss(), Optimizer(), temperature=1.0, seed=len(self.rows)
        )
        tokens = [sum(t.action_tokens for t in episodes), sum(len(t.ids) for t in episodes)]
        ours = [played_s, time.process_time() - start - played_s, *tokens]
        self.rows.append((ours, theirs))
        print(f"{'warm-up' if state.global_step == 1 else state.global_step - 1:<8}", end="")
        print("".join(f"{a:>12.{digits}f}{b:>8.{digits}f}" for a, b, digits in zip(ours, theirs, (1, 1, 0, 0))), end="")
        print(f"{rate(ours):>12.2f}{rate(theirs):>8.2f}{rate(ours) / rate(theirs):>8.2f}", flush=True)


def rate(row: Sequence[float]) -> float:
    """Sampled tokens per CPU-second."""
    return row[2] / (row[0] + row[1])


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("model", nargs="?", default="", help="a Hugging Face folder or an installed model")
    parser.add_argument("--updates", type=int, default=4)
    args = parse(parser, updates=1)
    torch.set_num_threads(1)
    policy = load_model(args, packing=False)
    policy.tokenizer.chat_template, policy.tokenizer.response_template = CHAT, {}
    with tempfile.TemporaryDirectory() as folder, mock.patch("trl.trainer.grpo_trainer.parse_response", call):
        trainer = Timed(
            model=policy.model,
            reward_funcs=None,
            processing_class=policy.tokenizer,
            train_dataset=Dataset.from_list(
                [
                    {"prompt": [{"role": "user", "content": ""}], "task_id": f"train-{i:06d}"}
                    for i in range(args.updates + 1)
                ]
            ),
            environment_factory=Cabinet,
            args=trl.GRPOConfig(
                output_dir=folder,
                max_steps=args.updates + 1,
                num_generations=GROUP,
                per_device_train_batch_size=GROUP,
                max_tool_calling_iterations=MESSAGES - 1,
                max_completion_length=2048,
                generation_kwargs={"max_new_tokens": TOKENS},
                learning_rate=1e-6,
                shuffle_dataset=False,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=None,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
        )
        turns = TakeTurns(trainer, args)
        trainer.add_callback(turns)
        trainer.remove_callback(PrinterCallback)
        print_heading("torch", "transformers", "trl")
        heads = ("rollout, s", "update, s", "sampled", "all tokens", "tokens/s")
        print(f"{'':8}{''.join(f'{head:>12}     TRL' for head in heads)}{'ratio':>8}", flush=True)
        trainer.train()
    rows = turns.rows[1:]
    ratios = [[ours[i] / theirs[i] for ours, theirs in rows] for i in (0, 1)]
    ratios.append([rate(ours) / rate(theirs) for ours, theirs in rows])
    for what, of in zip(("rollout, s", "update, s", "sampled tokens per CPU-second"), ratios):
        print(f"{what}, the harness / TRL: median {statistics.median(of):.2f} ({min(of):.2f} to {max(of):.2f})")


if __name__ == "__main__":
    run(main)
