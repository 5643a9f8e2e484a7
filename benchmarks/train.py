"""Tokens per second of one policy update on the CPU: ours and TRL's GRPOTrainer, packed and padded.

    OMP_NUM_THREADS=1 python benchmarks/train.py    # without the extra `examples` the table has no rows of TRL

The update has tasks of 8 episodes with the lengths of BFCL's ground truth, scaled to a quarter. The model is a random
Qwen2 in float32, with one torch thread. The time covers everything from episodes to stepped weights: batches, forward
and backward passes, clipping, and an optimizer step with learning rate 0. Each token counts once for every method.
Padding and repeated computation count nothing. Times are the process's CPU seconds, and repeats are interleaved.

TRL has no padding-free GRPO, so it is measured twice. "as it is" pads the episodes of an update to its longest prompt
and its longest completion, as TRL's `_generate_and_score_completions` does. "sorted, trimmed" puts episodes of similar
length into a micro-batch and pads them to its longest, which TRL does not offer. TRL's loss is set to ours (dapo: token
mean, no KL). The script fails if the gradients' norms differ.

"unshared" is packed without sharing the beginnings of a task's episodes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any
from unittest import mock

import numpy as np
import torch
from flags import new_parser, parse, print_heading, run
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from harness.model.attention import PACKED
from harness.model.fresh import fresh_qwen2
from harness.model.policy import Policy
from harness.settings.loss import Loss
from harness.settings.optimizer import Optimizer
from harness.types.trajectory import Trajectory
from harness.update.update import select_episodes, update_policy

VOCABULARY = 16_384


def new_model() -> Qwen2ForCausalLM:
    """Makes a model of 11.5 million parameters; 4.2 million of them are the tied embedding."""
    return fresh_qwen2(VOCABULARY, 256, 1536, 5, 4, 2, positions=4096, eos_id=1, pad_id=0)


def new_episodes(tasks: int, group: int) -> list[Trajectory]:
    """Makes episodes of random tokens in the shape of BFCL's. Half of each task's episodes succeed."""
    episodes = []
    for task in range(tasks):
        rng = np.random.default_rng(task)
        prompt = rng.integers(2, VOCABULARY, rng.integers(325, 851)).tolist()
        for member in range(group):
            t = Trajectory(str(task), task, reward=float(member % 2))
            t.add_prompt(prompt)
            for turn in range(int(np.clip(round(rng.normal(10, 3)), 3, 20))):
                if turn:
                    t.add_prompt(rng.integers(2, VOCABULARY, rng.integers(2, 18)).tolist())
                written = rng.integers(2, VOCABULARY, rng.integers(5, 31)).tolist()
                t.ids += written
                t.action_mask += [1] * len(written)
                t.logprobs += [-float(np.log(VOCABULARY))] * len(written)
            episodes.append(t)
    return episodes


UNCLIPPED = Loss(clip_low=1.0, clip_high=1e9)
"""The settings of the loss. Nothing is clipped, so that the methods can be compared."""


def ours(episodes: Sequence[Trajectory], *, tokens: int, packed: bool, shared: bool = True) -> Callable[[], float]:
    """Returns a function that makes our update and returns the gradient's norm."""
    model = new_model()
    if packed:
        model.set_attn_implementation(PACKED)
    chat: Any = None
    policy, optimizer = Policy(model, _tokenizer(), chat), torch.optim.SGD(model.parameters(), lr=0.0)
    steps = Optimizer(tokens_per_microbatch=tokens, max_grad_norm=1e9)

    def run() -> float:
        unshared = mock.patch("harness.model.batch._LEAST_SHARED", sys.maxsize)
        with contextlib.nullcontext() if shared else unshared:
            metrics = update_policy(policy, optimizer, episodes, UNCLIPPED, steps, temperature=1.0, seed=0)
            return metrics["train/grad_norm"]

    return run


def trls(episodes: Sequence[Trajectory], group: int, at_once: int, trimmed: bool, folder: str) -> Callable[[], float]:
    """Returns a function that makes the same update through TRL's `compute_loss` and returns the gradient's norm."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    chosen, _ = select_episodes(episodes, UNCLIPPED)
    model, parts = new_model(), len(chosen) // at_once
    settings = {"per_device_train_batch_size": at_once, "gradient_accumulation_steps": parts, "num_generations": group}
    settings |= {"max_completion_length": 4096, "loss_type": "dapo", "beta": 0.0, "epsilon": 1.0, "epsilon_high": 1e9}
    settings |= {"bf16": False, "use_cpu": True, "gradient_checkpointing": False, "report_to": []}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(folder, **settings),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * len(chosen)}),
        processing_class=_tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = parts
    trainer.model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def run() -> float:
        order = sorted(chosen, key=lambda pair: len(pair[0].ids)) if trimmed else chosen
        total = torch.tensor(float(sum(t.action_tokens for t, _ in chosen)))
        whole = None if trimmed else _widths([t for t, _ in chosen])
        optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(order), at_once):
            part = order[start : start + at_once]
            inputs = _trl_inputs([t for t, _ in part], whole or _widths([t for t, _ in part]))
            inputs["advantages"] = torch.tensor([a for _, a in part])
            inputs["num_items_in_batch"] = total
            trainer.accelerator.backward(trainer.compute_loss(trainer.model, inputs))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
        return float(norm)

    return run


def _prompt(t: Trajectory) -> int:
    return t.action_mask.index(1)


def _widths(episodes: Sequence[Trajectory]) -> tuple[int, int]:
    """Returns the tokens of the longest prompt and of the longest completion. A completion is all after the prompt."""
    return max(map(_prompt, episodes)), max(len(t.ids) - _prompt(t) for t in episodes)


def _trl_inputs(episodes: Sequence[Trajectory], widths: tuple[int, int]) -> dict[str, Tensor]:
    """Pads prompts on the left and completions on the right. Observations are outside the tool mask."""
    n, (left, right) = len(episodes), widths
    prompts, prompt_mask = (np.zeros((n, left), dtype=np.int64) for _ in range(2))
    completions, completion_mask, tool_mask = (np.zeros((n, right), dtype=np.int64) for _ in range(3))
    old = np.zeros((n, right), dtype=np.float32)
    for i, t in enumerate(episodes):
        start = _prompt(t)
        rest = len(t.ids) - start
        prompts[i, left - start :], prompt_mask[i, left - start :] = t.ids[:start], 1
        completions[i, :rest], completion_mask[i, :rest] = t.ids[start:], 1
        tool_mask[i, :rest], old[i, :rest] = t.action_mask[start:], t.logprobs[start:]
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "old_per_token_logps")
    arrays = (prompts, prompt_mask, completions, completion_mask, tool_mask, old)
    return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}


def _tokenizer() -> Any:
    """Makes a tokenizer, which is not used but which TRL requires."""
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def _spread(values: Sequence[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def compare_updates(args: Any, folder: str) -> None:
    """Makes the updates in turn, and prints the table."""
    tasks, group, repeats, at_once, budgets = args.tasks, args.group, args.repeats, args.at_once, args.tokens
    episodes = new_episodes(tasks, group)
    tokens, written = sum(len(t.ids) for t in episodes), sum(t.action_tokens for t in episodes)
    longest = max(len(t.ids) for t in episodes)
    print(f"{len(episodes)} episodes of {tasks} tasks, {tokens} tokens ({written} written), longest {longest}")
    ways: dict[str, Callable[[], float]] = {}
    for n in budgets:
        ways[f"ours, packed, {n} tokens"] = ours(episodes, tokens=n, packed=True)
    n = budgets[0]
    ways[f"ours, unshared, {n} tokens"] = ours(episodes, tokens=n, packed=True, shared=False)
    ways[f"ours, padded, {n} tokens"] = ours(episodes, tokens=n, packed=False)
    if importlib.util.find_spec("trl") is not None:
        for trimmed, name in ((False, "as it is"), (True, "sorted, trimmed")):
            for n in at_once:
                ways[f"TRL {version('trl')}, {name}, {n} at once"] = trls(episodes, group, n, trimmed, folder)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    norms: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, update in ways.items():
            start = time.process_time()
            norms[name] = update()
            if repeat:  # the first repeat allocates the memory
                seconds[name].append(time.process_time() - start)
    first = next(iter(ways))
    worst = max(abs(norm / norms[first] - 1) for norm in norms.values())
    assert worst < 1e-4, f"the ways compute different gradients: {norms}"
    print(f"{repeats} interleaved repeats; all gradients' norms within {worst:.0e}; medians, and their range")
    print(f"{'':44} {'tokens/s':>22}   {f'its seconds / {first}':>38}")
    for name, values in seconds.items():
        ratios = [own / best for own, best in zip(values, seconds[first], strict=True)]
        print(f"{name:44} {_spread([tokens / s for s in values], 0):>22}   {_spread(ratios, 2):>38}")


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--group", type=int, default=8, help="episodes of a task")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16_384])
    args = parse(parser, tasks=1, group=2, repeats=1, at_once=[2], tokens=[2048])
    torch.set_num_threads(1)
    print_heading("torch", "transformers")
    with tempfile.TemporaryDirectory() as folder:
        compare_updates(args, folder)


if __name__ == "__main__":
    run(main)
