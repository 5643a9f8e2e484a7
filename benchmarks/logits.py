"""How far the sampler's log-probabilities are from the trainer's, with logits rounded to bfloat16 and in float32.

    VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 python benchmarks/logits.py FOLDER

The model is in bfloat16. It continues the first prompts of EH-Cabinet's tasks at temperature 1, once with logits that
the sampler rounds to bfloat16, and once with the float32 logits that this project uses. The trainer scores each sample
in both ways too. The table shows the differences of the log-probabilities in nats, with the mean's standard error over
the samples, and the variance of the importance ratios exp(trainer - sampler).
"""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from unittest import mock

import gymnasium as gym
import torch
from flags import add_model, load_model, new_parser, parse, print_heading, run
from torch import Tensor
from torch.nn.functional import linear

from eh_gym.errors import MissingExtraError
from harness.model.policy import Policy
from harness.records.versions import package_versions
from harness.sampling.vllm.engine import VLLMSampler
from harness.types.sampler import Sample, SampleRequest, sample_all
from harness.types.trajectory import Trajectory


def play(policy: Policy, prompts: list[list[int]], tokens: int, head: str) -> list[Sample]:
    """One sample for each prompt; `head` is "bfloat16" or "float32"."""
    with mock.patch("harness.sampling.vllm.engine.FLOAT32_LOGITS", {"head_dtype": head}):
        sampler = VLLMSampler(policy.model, max_context=2048)
        return sample_all(sampler, [SampleRequest(i, prompt, tokens, seed=i) for i, prompt in enumerate(prompts)])


@torch.no_grad()
def score(policy: Policy, prompts: list[list[int]], samples: list[Sample], head: str) -> list[Tensor]:
    """The trainer's log-probabilities of each sample's tokens."""
    scores = []
    rounds = mock.patch("harness.model.head._wide_linear", lambda *layer: linear(*layer).float())
    with rounds if head == "bfloat16" else nullcontext():
        for prompt, sample in zip(prompts, samples, strict=True):
            episode = Trajectory("task", 0)
            episode.add_prompt(prompt)
            episode.add_sample(sample)
            batch = policy.batch([episode])
            scores.append(policy.score(batch, 1.0)[0][batch.action_mask])
    return scores


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    add_model(parser)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="the tokens of each sample")
    args = parse(parser, samples=2, tokens=4)
    packages = package_versions()
    vllm = packages.get("vllm-cpu") or packages.get("vllm")
    if vllm is None:
        raise MissingExtraError("vLLM is missing; docs/vllm.md says how to install it")
    torch.set_num_threads(1)
    env = gym.make("EH-Cabinet-v0", split="train")
    policy = load_model(args, dtype=torch.bfloat16)
    policy.model.eval()
    prompts = []
    for seed in range(args.samples):
        observation, info = env.reset(seed=seed)
        prompts.append(policy.chat.prompt_ids(info["system_prompt"], observation))

    print_heading("torch", "transformers", vllm=vllm)
    print(f"bfloat16 weights, {args.samples} samples of at most {args.tokens} tokens")
    print(f"{'sampler':>9}{'trainer':>10}{'mean':>19}{'rms':>8}{'largest':>9}{'var of ratios':>15}")
    for sampled in ("bfloat16", "float32"):
        samples = play(policy, prompts, args.tokens, sampled)
        for trained in ("bfloat16", "float32"):
            each = [
                scores - torch.tensor(sample.logprobs)
                for scores, sample in zip(score(policy, prompts, samples, trained), samples, strict=True)
            ]
            means, off = [float(x.abs().mean()) for x in each], torch.cat(each)
            error = statistics.stdev(means) / len(means) ** 0.5
            print(
                f"{sampled:>9}{trained:>10}{off.abs().mean():10.4f} ± {error:.4f}{off.square().mean().sqrt():8.4f}"
                f"{off.abs().max():9.3f}{off.exp().var():15.6f}",
                flush=True,
            )


if __name__ == "__main__":
    run(main)
