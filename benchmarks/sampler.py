"""Tokens per CPU-second of sampling from a real model: this project's sampler compared with transformers' `generate`.

    OMP_NUM_THREADS=1 python benchmarks/sampler.py MODEL [--dtype bfloat16]

For each batch size, both continue prompts of 216 tokens by 32 tokens, in one thread. "apart" has random prompts with
nothing in common. "group" is one prompt for all, the first of a task of EH-Cabinet, as a group of GRPO begins.
`generate` computes every prompt in either case, so it is timed once. Runs are interleaved, and medians printed. The
last columns are the largest and the mean difference between the log-probabilities that the group was sampled with and
those of a plain forward pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import gymnasium as gym
import torch
from flags import add_model, load_model, new_parser, parse, print_heading, run
from torch import Tensor
from transformers import PreTrainedModel

from harness.sampling.transformers import TransformersSampler
from harness.types.sampler import Sample, SampleRequest, sample_all

PROMPT, NEW = 216, 32


def with_sampler(model: PreTrainedModel, prompts: list[list[int]]) -> list[Sample]:
    """Samples NEW tokens for each prompt."""
    requests = [SampleRequest(i, prompt, NEW, seed=i) for i, prompt in enumerate(prompts)]
    return sample_all(TransformersSampler(model), requests)


@torch.inference_mode()
def with_generate(model: PreTrainedModel, prompts: list[list[int]]) -> None:
    """Does the same with one call of `generate`."""
    torch.manual_seed(0)
    ids = torch.tensor(prompts)
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        top_p=1.0,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        pad_token_id=0,
    )


@torch.inference_mode()
def forward_logprobs(model: PreTrainedModel, prompt: list[int], sample: Sample) -> Tensor:
    """The log-probabilities of a sample's tokens, from one pass over the whole text."""
    logits = model(input_ids=torch.tensor([prompt + sample.ids]), use_cache=False, logits_to_keep=NEW + 1).logits[0]
    logp = torch.log_softmax(logits[:-1].float(), -1)
    return logp.gather(1, torch.tensor(sample.ids)[:, None])[:, 0]


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    add_model(parser)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=3)
    args = parse(parser, batches=[2], repeats=1)
    torch.set_num_threads(1)
    # Not packed, so that `generate` computes as it does for everybody.
    policy = load_model(args, dtype=getattr(torch, args.dtype), packing=False)
    model = policy.model.eval()
    observation, info = gym.make("EH-Cabinet-v0").reset(seed=0)
    task = policy.chat.prompt_ids(info["system_prompt"], observation)
    task = (task * -(-PROMPT // len(task)))[:PROMPT]  # with SmolLM2 it has 216 tokens as it is
    draws = torch.Generator().manual_seed(0)
    words = torch.randint(3, model.config.vocab_size, (max(args.batches), PROMPT), generator=draws).tolist()

    print_heading("torch", "transformers")
    print(f"prompts of {PROMPT} tokens and {NEW} sampled ones, {args.dtype}, one thread, median of {args.repeats}")
    runs: dict[str, Callable[[list[list[int]], list[list[int]]], object]] = {
        "generate": lambda apart, group: with_generate(model, apart),
        "apart": lambda apart, group: with_sampler(model, apart),
        "group": lambda apart, group: with_sampler(model, group),
    }
    print("tokens per CPU-s, and as a ratio to generate; differences of a group's log-probabilities in nats")
    print(f"{'batch':5}{''.join(f'{name:>10}' for name in runs)}{'apart':>9}{'group':>8}{'max':>11}{'mean':>9}")
    for n in args.batches:
        apart, group = words[:n], [task] * n
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(args.repeats):
            for name, play in runs.items():
                start = time.process_time()
                play(apart, group)
                seconds[name].append(time.process_time() - start)
        rates = {name: n * NEW / statistics.median(values) for name, values in seconds.items()}
        ratios = [
            statistics.median(a / b for a, b in zip(seconds["generate"], seconds[name], strict=True))
            for name in ("apart", "group")
        ]
        samples = with_sampler(model, group)[:4]
        sampled = torch.tensor([sample.logprobs for sample in samples])
        off = (sampled - torch.stack([forward_logprobs(model, task, sample) for sample in samples])).abs()
        line = f"{n:5}{''.join(f'{rate:10.1f}' for rate in rates.values())}"
        print(f"{line}{ratios[0]:9.2f}{ratios[1]:8.2f}{off.max():11.1e}{off.mean():9.1e}", flush=True)


if __name__ == "__main__":
    run(main)
