"""Sampled tokens per CPU-second of whole updates: this harness beside TRL's GRPOTrainer, without a GPU.

    OMP_NUM_THREADS=1 python benchmarks/trl_cpu.py smollm2-135m > benchmarks/results/trl-cpu.txt

An update plays a task of EH-Cabinet 8 times, `--messages` of at most 24 tokens each, and trains all weights. Both sides
have float32, temperature 1, AdamW and means over tokens without KL; neither recomputes. They take turns, and the first
updates do not count. TRL's prompts lack the tool's schema, and each message is a call, so the episodes are alike.
"""

import tempfile
from functools import partial
from statistics import median
from time import process_time
from typing import Any
from unittest import mock

import torch
import trl
from datasets import Dataset
from flags import add_model, load_model, new_parser, parse, print_heading, run
from transformers import PrinterCallback

from eh_gym import FixedHorizon
from eh_gym.integrations.tools import ToolEnvironment
from harness.model.policy import Policy
from harness.rollout.environment import Environments
from harness.rollout.rollout import rollout
from harness.sampling.transformers import TransformersSampler
from harness.settings.loss import Loss
from harness.settings.optimizer import Optimizer
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.update.optimizer import make_optimizer
from harness.update.update import update_policy

ENV, GROUP, TOKENS = "EH-Cabinet-v0", 8, 24
CHAT = """{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}{{ m.tool_calls }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def as_call(tokenizer: Any, ids: list[int], **_: Any) -> dict[str, Any]:
    """Any message as a call."""
    call = {"name": "act", "arguments": {"action": tokenizer.decode(ids, skip_special_tokens=True)}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}


class Beside(trl.GRPOTrainer):
    """TRL's trainer, and an update of the harness after each of its own."""

    def __init__(self, policy: Policy, messages: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.remove_callback(PrinterCallback)
        self.policy, self.sampler, self.ratios = policy, TransformersSampler(policy.model), list[list[float]]()
        self.adamw = make_optimizer(policy.model, Optimizer())
        self.slots = Environments(ENV, {"split": "train"}, GROUP, 0).open(FixedHorizon(messages))

    def training_step(self, *inputs: Any) -> Any:
        """Begins an update; the one before has ended."""
        self.compare()
        self.began = process_time()
        return super().training_step(*inputs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        made = super()._generate_and_score_completions(inputs)
        mask = made["completion_mask"]
        self.row = process_time(), int((made["tool_mask"] * mask).sum()), int(made["prompt_mask"].sum() + mask.sum())
        return made

    def compare(self) -> None:
        """Makes the harness's update, and prints both."""
        if not (number := self.state.global_step):
            return
        start = process_time()
        theirs = [self.row[0] - self.began, start - self.row[0], *self.row[1:]]
        requests = [EpisodeRequest(f"train-{number - 1:06d}", 0, seed) for seed in range(GROUP)]
        episodes = rollout(self.slots, self.sampler, self.policy.chat, requests, Rollout(max_action_tokens=TOKENS))
        played = process_time()
        for i, episode in enumerate(episodes):
            episode.reward = float(i % 2)
        update_policy(self.policy, self.adamw, episodes, Loss(), Optimizer(), temperature=1.0, seed=number)
        ours: list[float] = [played - start, process_time() - played]
        ours += [sum(t.action_tokens for t in episodes), sum(len(t.ids) for t in episodes)]
        rates = [row[2] / (row[0] + row[1]) for row in (ours, theirs)]
        self.ratios.append([ours[0] / theirs[0], ours[1] / theirs[1], rates[0] / rates[1]])
        cells = zip(ours + rates[:1], theirs + rates[1:], strict=True)
        print(f"{number - 1:6}", *(f"{a:10.1f}{b:8.1f}" for a, b in cells), flush=True)


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    add_model(parser)
    parser.add_argument("--messages", type=int, default=6)
    args = parse(parser)
    torch.set_num_threads(1)
    policy = load_model(args, packing=False)
    policy.tokenizer.chat_template, policy.tokenizer.response_template = CHAT, {}
    rows = [
        {"prompt": [{"role": "user", "content": ""}], "task_id": f"train-{i:06d}"}
        for i in range(2 if args.smoke else 5)
    ]
    with tempfile.TemporaryDirectory() as folder, mock.patch("trl.trainer.grpo_trainer.parse_response", as_call):
        settings = {"max_steps": len(rows), "num_generations": GROUP, "per_device_train_batch_size": GROUP}
        settings |= {"max_completion_length": 2048, "generation_kwargs": {"max_new_tokens": TOKENS}}
        settings |= {"max_tool_calling_iterations": args.messages - 1, "gradient_checkpointing": None, "bf16": False}
        settings |= {"use_cpu": True, "shuffle_dataset": False, "save_strategy": "no"}
        trainer = Beside(
            load_model(args),
            args.messages,
            model=policy.model,
            reward_funcs=lambda completions, **_: [float(i % 2) for i in range(GROUP)],
            processing_class=policy.tokenizer,
            train_dataset=Dataset.from_list(rows),
            environment_factory=partial(ToolEnvironment, ENV, split="train"),
            args=trl.GRPOConfig(folder, report_to="none", disable_tqdm=True, **settings),
        )
        print_heading("torch", "transformers", "trl")
        print("update  rollout, s     TRL  update, s     TRL    sampled     TRL all tokens     TRL   tokens/s     TRL")
        trainer.train()
        trainer.compare()
    for what, of in zip(("rollout", "update", "tokens/s"), zip(*trainer.ratios[1:], strict=True), strict=True):
        print(f"{what} / TRL's: median {median(of):.2f} ({min(of):.2f} to {max(of):.2f})")


if __name__ == "__main__":
    run(main)
