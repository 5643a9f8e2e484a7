"""LoRA handed to vLLM: merged into bfloat16 weights, or apart. What arrives of an update, and what each way costs on a CPU.

A Qwen2 of random weights (standard deviation 0.02, as pretrained ones have) is trained with adapters on random text, in
bfloat16 with float32 masters as `harness.grpo` does. After some updates both engines sample. "arrived" is the slope, with its
standard error, of what a token's log-probability changed by over what it changed by in float32, both against float32 without
adapters: 1 is the policy as the adapters have it, 0 the one that it began as. The trainer is measured so too, on the tokens of
the engine with adapters apart. "off" is the mean absolute difference between engine and trainer. On a CPU vLLM applies adapters
in plain torch, with a copy of them for each token; of its kernels for GPUs the times say nothing.

    VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 python benchmarks/lora_handover.py
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
from machine import cpu_name
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from harness.policy.lora import add_lora, without_lora
from harness.policy.shape import ModelShape
from harness.quickstart.tiny import fresh_qwen2
from harness.sampling.vllm import VLLMSampler
from harness.training.optimizer import make_optimizer
from harness.types.sampler import Sample, SampleRequest, sample_all

_WORDS, _PROMPT, _TOKENS = 1024, 16, 64


def logprobs(model: Qwen2ForCausalLM, prompts: torch.Tensor, samples: list[Sample]) -> torch.Tensor:
    """Of the sampled tokens, by one forward pass over each text."""
    rows = torch.cat([prompts, torch.tensor([sample.ids for sample in samples])], 1)
    with torch.no_grad():
        scores = torch.log_softmax(model.eval()(input_ids=rows).logits.float(), -1)
    return scores[:, _PROMPT - 1 : -1].gather(2, rows[:, _PROMPT:, None]).flatten()


def train(model: Qwen2ForCausalLM, optimizer: torch.optim.Optimizer, updates: int, draws: torch.Generator) -> None:
    """Updates on random text with a skew that can be learned."""
    for _ in range(updates):
        rows = (torch.rand(4, 64, generator=draws) ** 2 * _WORDS).long()
        model.train()(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def slope(found: torch.Tensor, moved: torch.Tensor) -> str:
    """Of a line through 0, and its standard error."""
    slope = float(found @ moved / moved.square().sum())
    return f"{slope:.2f} ± {float((found - slope * moved).std() / moved.square().sum().sqrt()):.2f}"


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument(
        "--learning-rate", type=float, default=1e-5, help="ten times the paper's, as is usual with LoRA"
    )
    parser.add_argument("--updates", type=int, nargs="+", default=[4, 16, 64], help="after which to sample")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5, help="more hand-overs and rollouts, for the times alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    heads = arguments.width // 64
    shape = ModelShape(
        _WORDS, arguments.width, 4 * arguments.width, arguments.layers, heads, heads, tied=True, positions=256
    )
    model = fresh_qwen2(shape, eos_id=0, dtype=torch.bfloat16)
    add_lora(model, arguments.rank, seed=0)
    optimizer = make_optimizer(model, learning_rate=arguments.learning_rate, betas=(0.9, 0.999), weight_decay=0.0)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(_WORDS)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0")
    engines = {name: VLLMSampler(model, tokenizer, adapters=name == "apart") for name in ("merged", "apart")}
    draws = torch.Generator().manual_seed(0)
    times: dict[str, dict[str, list[float]]] = {name: {"hand-over": [], "token": []} for name in engines}

    def sample(name: str, prompts: torch.Tensor) -> list[Sample]:
        """One hand-over and one rollout, timed."""
        start = time.perf_counter()
        engines[name].weights_changed()
        middle = time.perf_counter()
        samples = sample_all(engines[name], [SampleRequest(i, p.tolist(), _TOKENS, i) for i, p in enumerate(prompts)])
        times[name]["hand-over"].append(1e3 * (middle - start))
        times[name]["token"].append(1e3 * (time.perf_counter() - middle) / sum(len(s.ids) for s in samples))
        for i in range(len(prompts)):
            engines[name].end_session(i)
        return samples

    print(
        f"{cpu_name()}, one thread; {model.num_parameters():,} parameters, adapters of rank {arguments.rank} among them"
    )
    print(f"learning rate {arguments.learning_rate}, {arguments.episodes * _TOKENS} tokens sampled by each")
    print(
        f"{'updates':>8}{'moved':>9}{'trainer arrived':>18}"
        + "".join(f"{f'{n} arrived':>18}{'off':>9}" for n in engines)
    )
    done = 0
    for updates in arguments.updates:
        train(model, optimizer, updates - done, draws)
        done, row = updates, ""
        exact = copy.deepcopy(model).float()
        for name in engines:
            prompts = torch.randint(0, _WORDS, (arguments.episodes, _PROMPT), generator=draws)
            samples = sample(name, prompts)
            sampled = torch.tensor([value for sample in samples for value in sample.logprobs])
            trainer, now = (logprobs(m, prompts, samples) for m in (model, exact))
            with without_lora(exact):
                before = logprobs(exact, prompts, samples)
            off = float((sampled - trainer).abs().mean())
            row += f"{slope(sampled - before, now - before):>18}{off:9.4f}"
        moved = float((now - before).abs().mean())
        print(f"{updates:8}{moved:9.4f}{slope(trainer - before, now - before):>18}{row}", flush=True)
    for _ in range(arguments.rounds):
        for name in engines:
            sample(name, prompts)
    print(f"{'ms, median and range':28}" + "".join(f"{name:>28}" for name in engines))
    for what in ("hand-over", "token"):
        print(f"{what:28}" + "".join(f"{spread(times[name][what]):>28}" for name in engines))


if __name__ == "__main__":
    main()
