"""Sampled tokens per second of whole updates: this harness beside TRL's GRPOTrainer, on a CPU or with vLLM on a GPU.

    OMP_NUM_THREADS=1 python benchmarks/beside_trl.py smollm2-135m > benchmarks/results/trl-cpu.txt
    python benchmarks/beside_trl.py Qwen/Qwen2.5-1.5B-Instruct --vllm --group 32 --messages 24 --tokens 128

An update plays a task of EH-Cabinet `--group` times, `--messages` of at most `--tokens` tokens each, and trains all
weights. Both sides have temperature 1, AdamW and means over tokens without KL; neither recomputes. The first updates do
not count. TRL's prompts lack the tool's schema, and each message is a call, so the episodes are alike.

The trained model samples, in float32; both sides take turns in one process, and the seconds are processor time. With
--vllm each side has a process with an engine beside the trainer (TRL's colocated mode), in bfloat16, and the seconds
are those of the clock; weights go to the engine at the start of each rollout. Without a GPU, to try the script, vLLM's
CPU build samples in float32, and TRL's engine keeps its first weights.
"""

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any
from unittest import mock

import torch
import trl
from datasets import Dataset
from flags import add_model, load_model, new_parser, parse, print_heading, run
from transformers import PrinterCallback

from eh_gym import FixedHorizon
from eh_gym.errors import EHError
from eh_gym.integrations.tools import ToolEnvironment
from harness.model.policy import Policy
from harness.rollout.environment import Environments
from harness.rollout.rollout import rollout
from harness.sampling.make import make_sampler
from harness.settings.loss import Loss
from harness.settings.optimizer import Optimizer
from harness.settings.rollout import Rollout
from harness.settings.sampling import TransformersSampling, VLLMSampling
from harness.types.request import EpisodeRequest
from harness.update.optimizer import make_optimizer
from harness.update.update import update_policy

ENV, GPU_SHARE = "EH-Cabinet-v0", 0.4
CHAT = """{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}{{ m.tool_calls }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ON_CPU = {"enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 1 << 29, "enable_chunked_prefill": False}

Row = list[float]
"""An update: the seconds of its rollout and of the rest, and its tokens, sampled and all."""


def clock(args: Namespace) -> float:
    """Seconds."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter() if args.vllm else process_time()


class Ours:
    """Makes updates with the harness."""

    def __init__(self, policy: Policy, args: Namespace) -> None:
        sampling = VLLMSampling(max_context=args.context, gpu_memory_utilization=GPU_SHARE) if args.vllm else None
        self.sampler = make_sampler(sampling or TransformersSampling(), policy, slots=args.group)
        self.settings = Optimizer(tokens_per_microbatch=2048 * args.at_once)
        self.policy, self.args, self.adamw = policy, args, make_optimizer(policy.model, self.settings)
        self.slots = Environments(ENV, {"split": "train"}, args.group, 0).open(FixedHorizon(args.messages))

    def update(self, number: int) -> Row:
        """Plays the task of this number, and trains."""
        start = clock(self.args)
        self.sampler.weights_changed()
        requests = [EpisodeRequest(f"train-{number:06d}", 0, seed) for seed in range(self.args.group)]
        settings = Rollout(max_action_tokens=self.args.tokens)
        episodes = rollout(self.slots, self.sampler, self.policy.chat, requests, settings)
        played = clock(self.args)
        for i, episode in enumerate(episodes):
            episode.reward = float(i % 2)
        update_policy(self.policy, self.adamw, episodes, Loss(), self.settings, temperature=1.0, seed=number)
        sampled = sum(t.action_tokens for t in episodes)
        return [played - start, clock(self.args) - played, sampled, sum(len(t.ids) for t in episodes)]


class Theirs(trl.GRPOTrainer):
    """TRL's trainer. After each update it calls `ended` with the row."""

    def __init__(self, args: Namespace, ended: Callable[[Row], None], **settings: Any) -> None:
        super().__init__(args=grpo_config(args), **settings)
        self.remove_callback(PrinterCallback)
        self.eh_args, self.ended, self.rows, self.began = args, ended, 0, 0.0

    def training_step(self, *inputs: Any) -> Any:
        """Begins an update, or goes on with one."""
        self.end()
        self.began = self.began or clock(self.eh_args)
        return super().training_step(*inputs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        made = super()._generate_and_score_completions(inputs)
        mask = made["completion_mask"]
        self.played = clock(self.eh_args)
        self.tokens = int((made["tool_mask"] * mask).sum()), int(made["prompt_mask"].sum() + mask.sum())
        return made

    def end(self) -> None:
        """Hands on the row of an update that has ended."""
        if self.state.global_step > self.rows:
            self.rows += 1
            self.ended([self.played - self.began, clock(self.eh_args) - self.played, *self.tokens])
            self.began = 0.0


def grpo_config(args: Namespace) -> trl.GRPOConfig:
    """TRL's settings."""
    settings = {"max_steps": args.updates, "num_generations": args.group}
    settings |= {"per_device_train_batch_size": args.at_once, "gradient_accumulation_steps": args.group // args.at_once}
    settings |= {"max_completion_length": 3072, "max_tool_calling_iterations": args.messages - 1}
    settings |= {"gradient_checkpointing": None, "bf16": False}
    settings |= {"use_cpu": not torch.cuda.is_available(), "shuffle_dataset": False, "save_strategy": "no"}
    settings["generation_kwargs"] = {"max_tokens" if args.vllm else "max_new_tokens": args.tokens}
    if args.vllm:
        settings |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": GPU_SHARE}
        settings |= {"vllm_max_model_length": args.context, "vllm_importance_sampling_correction": False}
    return trl.GRPOConfig(tempfile.mkdtemp(), report_to="none", disable_tqdm=True, **settings)


def train(policy: Policy, args: Namespace, ended: Callable[[Row], None]) -> None:
    """Makes TRL's updates."""

    def as_call(tokenizer: Any, ids: list[int], **_: Any) -> dict[str, Any]:
        call = {"name": "act", "arguments": {"action": tokenizer.decode(ids, skip_special_tokens=True)}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

    if args.vllm and not torch.cuda.is_available():
        from trl.generation import vllm_generation

        vllm_generation.LLM = partial(vllm_generation.LLM, dtype="float32", **ON_CPU)
        vllm_generation.VLLMGeneration.sync_weights = lambda _: None  # vLLM's CPU build has packed them
    rows = [{"prompt": [{"role": "user", "content": ""}], "task_id": f"train-{i:06d}"} for i in range(args.updates)]
    with mock.patch("trl.trainer.grpo_trainer.parse_response", as_call):
        trainer = Theirs(
            args,
            ended,
            model=policy.model,
            reward_funcs=lambda completions, **_: [float(i % 2) for i in range(len(completions))],
            processing_class=policy.tokenizer,
            train_dataset=Dataset.from_list(rows),
            environment_factory=partial(ToolEnvironment, ENV, split="train"),
        )
        trainer.train()
        trainer.end()


def side(args: Namespace, folder: Path) -> None:
    """With --vllm: makes one side's updates with an engine, and keeps their rows."""
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    policy = load_model(args, dtype=dtype, device=device, packing=args.side == "ours")
    policy.tokenizer.chat_template, policy.tokenizer.response_template = CHAT, {}
    args.context = min(4096, policy.model.config.max_position_embeddings)
    rows: list[Row] = []
    if args.side == "ours":
        ours = Ours(policy, args)
        rows = [ours.update(i) for i in range(args.updates)]
    else:
        policy.save(folder / "model")
        policy.model.name_or_path = str(folder / "model")  # from where TRL's engine loads it
        train(policy, args, rows.append)
    (folder / args.side).write_text(json.dumps(rows))


def pairs(args: Namespace, show: Callable[[Row, Row], None]) -> None:
    """Shows each update of both sides."""
    if not args.vllm:
        policy = load_model(args, packing=False)
        policy.tokenizer.chat_template, policy.tokenizer.response_template = CHAT, {}
        ours, number = Ours(policy, args), iter(range(args.updates))
        train(policy, args, lambda theirs: show(ours.update(next(number)), theirs))
        return
    with tempfile.TemporaryDirectory(prefix="eh-benchmark-") as folder:
        for name in ("ours", "trl"):
            words = [sys.executable, *sys.argv, "--side", name, "--folder", folder]
            if subprocess.run(words, stdout=sys.stderr).returncode:
                raise EHError(f"the side {name} failed")
        for both in zip(*(json.loads(Path(folder, name).read_text()) for name in ("ours", "trl")), strict=True):
            show(*both)


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    add_model(parser)
    parser.add_argument("--messages", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=8, help="episodes in a forward pass; a divisor of --group")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--vllm", action="store_true", help="sample with vLLM")
    parser.add_argument("--side", help="for the processes that this starts")
    parser.add_argument("--folder", type=Path)
    args = parse(parser, updates=2)
    torch.set_num_threads(1)
    if args.side:
        return side(args, args.folder)
    print_heading("torch", "transformers", "trl", *(["vllm"] if args.vllm and torch.cuda.is_available() else []))
    print("update  rollout, s     TRL  update, s     TRL    sampled     TRL all tokens     TRL   tokens/s     TRL")
    ratios: list[Row] = []

    def show(ours: Row, theirs: Row) -> None:
        rates = [row[2] / (row[0] + row[1]) for row in (ours, theirs)]
        cells = zip(ours + rates[:1], theirs + rates[1:], strict=True)
        print(f"{len(ratios):6}", *(f"{a:10.1f}{b:8.1f}" for a, b in cells), flush=True)
        ratios.append([ours[0] / theirs[0], ours[1] / theirs[1], rates[0] / rates[1]])

    pairs(args, show)
    for what, of in zip(("rollout", "update", "tokens/s"), zip(*ratios[1:], strict=True), strict=True):
        print(f"{what} / TRL's: median {median(of):.2f} ({min(of):.2f} to {max(of):.2f})")
    return None


if __name__ == "__main__":
    run(main)
