"""Two ways to give LoRA adapters to vLLM: what arrives of an update, and what each way costs on a CPU.

    VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 python benchmarks/lora_handover.py

"merged" adds the adapters to the bfloat16 weights. "apart" hands them over separately. A Qwen2 with random weights (standard
deviation 0.02, as in pretrained models) is trained with adapters on random text, in bfloat16 with float32 masters as in
`harness.grpo`. After some updates both engines sample.

"arrived" is a slope with its standard error: the change of a token's log-probability over its change in float32. Both changes
are relative to float32 without adapters. 1 is the policy with the adapters, and 0 is the policy at the start. The trainer is
measured in the same way, on the tokens of the engine with separate adapters. "off" is the mean absolute difference between
engine and trainer. On a CPU vLLM applies adapters in plain torch, with a copy of them for each token. So the times say nothing
about vLLM's kernels for GPUs.
"""

from __future__ import annotations

import copy
import statistics
import time

import torch
from flags import command, new_parser, parse, run
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from harness.policy.fresh import fresh_qwen2
from harness.policy.lora import add_lora, without_lora
from harness.policy.shape import ModelShape
from harness.run.versions import cpu_name
from harness.sampling.vllm import VLLMSampler
from harness.training.optimizer import make_optimizer
from harness.types.sampler import Sample, SampleRequest, sample_all

_WORDS, _PROMPT, _TOKENS = 1024, 16, 64


def logprobs(model: Qwen2ForCausalLM, prompts: torch.Tensor, samples: list[Sample]) -> torch.Tensor:
    """Returns the log-probabilities of the sampled tokens, from one forward pass over each text."""
    rows = torch.cat([prompts, torch.tensor([sample.ids for sample in samples])], 1)
    with torch.no_grad():
        scores = torch.log_softmax(model.eval()(input_ids=rows).logits.float(), -1)
    return scores[:, _PROMPT - 1 : -1].gather(2, rows[:, _PROMPT:, None]).flatten()


def train(model: Qwen2ForCausalLM, optimizer: torch.optim.Optimizer, updates: int, draws: torch.Generator) -> None:
    """Trains on random text with a skew that can be learned."""
    for _ in range(updates):
        rows = (torch.rand(4, 64, generator=draws) ** 2 * _WORDS).long()
        model.train()(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def slope(found: torch.Tensor, moved: torch.Tensor) -> str:
    """Returns the slope of a line through 0, and its standard error."""
    slope = float(found @ moved / moved.square().sum())
    return f"{slope:.2f} ± {float((found - slope * moved).std() / moved.square().sum().sqrt()):.2f}"


def spread(values: list[float]) -> str:
    """Returns the median and the range."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    """Parses the command line and prints both tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument(
        "--learning-rate", type=float, default=1e-5, help="the default is ten times the paper's, as is usual with LoRA"
    )
    parser.add_argument("--updates", type=int, nargs="+", default=[4, 16, 64], help="sample after these updates")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument(
        "--rounds", type=int, default=5, help="the number of further hand-overs and rollouts, only for the times"
    )
    arguments = parse(parser, width=64, layers=1, updates=[1], episodes=2, rounds=1)
    if torch.cuda.is_available():
        parser.error(
            "this compares two engines in one process, and on a GPU a process can have one; use vLLM for the CPU"
        )
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
        """Times one hand-over and one rollout; returns the samples."""
        start = time.perf_counter()
        engines[name].weights_changed()
        middle = time.perf_counter()
        samples = sample_all(engines[name], [SampleRequest(i, p.tolist(), _TOKENS, i) for i, p in enumerate(prompts)])
        times[name]["hand-over"].append(1e3 * (middle - start))
        times[name]["token"].append(1e3 * (time.perf_counter() - middle) / sum(len(s.ids) for s in samples))
        for i in range(len(prompts)):
            engines[name].end_session(i)
        return samples

    print(command())
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
    run(main)
