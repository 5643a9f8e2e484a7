"""The checks of `harness.diagnostics.checks` that load torch: kernels, speed and memory with the shape of a real model.

The weights are random, so nothing is downloaded. On a CPU the shape is tiny, and no speed is promised.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from harness.diagnostics.lab import Lab
from harness.diagnostics.verdict import Measurement
from harness.evaluation.play import evaluation_requests, held_out_tasks, play_policy
from harness.planning.gpus import GPU, gpu_named
from harness.planning.memory import attention_fits, memory_of
from harness.planning.update_time import update_time_of
from harness.policy.attention import PACKED
from harness.policy.chat import Reply
from harness.policy.fresh import fresh_qwen2
from harness.policy.head import float32_logits
from harness.policy.lora import add_lora
from harness.policy.policy import Policy
from harness.policy.ranks import Ranks
from harness.policy.shape import KNOWN, ModelShape
from harness.rollout.environment import Environments
from harness.run.runtime import compiles
from harness.sampling import vllm
from harness.sampling.vllm import VLLMSampler
from harness.settings.grpo import GRPOConfig
from harness.settings.plan import Plan
from harness.training.optimizer import HostMoments, make_optimizer
from harness.training.update import update_policy
from harness.types.rules import Rules
from harness.types.sampler import SampleRequest, sample_all
from harness.types.trajectory import Trajectory

__all__ = ["engine", "merged_engine", "packed_attention", "policy_update", "sharded_update", "small_cache"]

_TINY = ModelShape(512, 64, 128, 2, 2, 1, tied=True, positions=2048)  # vLLM's attention on a CPU has no smaller heads
_LARGE_GPU = 70e9  # bytes, which the update of 7B with adapters needs
_KEPT = 0.5  # of the speed on paper; below it, a path is slow. Good trainers reach .67 to .75 of theirs


def packed_attention(lab: Lab) -> list[Measurement]:
    """Compares the log-probabilities of packed episodes, with a shared prompt, with those of each episode alone in float32."""
    shape = KNOWN["Qwen2.5-0.5B"] if lab.on_gpu else _TINY
    episodes = _episodes(4, 1024 if lab.on_gpu else 320, shape.vocab)  # their prompt is long enough to be shared
    policy = _policy(shape, lab, initializer_range=0.05)
    with torch.no_grad():
        packed = policy.score(policy.batch(episodes), 1.0)[0]
        policy.model.float().set_attn_implementation("sdpa")
        alone = torch.cat([policy.score(policy.batch([t]), 1.0)[0] for t in episodes])
    off = (packed - alone).abs()
    return [
        Measurement("packed - alone, mean nats", float(off.mean()), most=0.05 if lab.on_gpu else 1e-4),
        Measurement("nats that the tokens have", float(alone.abs().mean()), least=1.0),
    ]


def policy_update(lab: Lab) -> list[Measurement]:
    """Times an update with LoRA adapters, as the recipe for one GPU, and compares time and memory with the plan's."""
    name = _model(lab)
    shape, tokens = KNOWN.get(name, _TINY), 16_384 if lab.on_gpu else 256
    train = GRPOConfig(
        model=name,
        env="EH-BFCL-v0",
        dtype="bfloat16" if lab.on_gpu else "float32",
        lora_rank=32,
        gradient_checkpointing=True,
        max_context=tokens,
        tokens_per_microbatch=tokens,
        tasks_per_update=1,
        group_size=2,
    )
    policy = _policy(shape, lab)
    add_lora(policy.model, 32, seed=0)
    policy.checkpoint_activations(keep_attention=attention_fits(train, lab.gpu_bytes))
    optimizer = make_optimizer(policy.model, learning_rate=1e-6, betas=(0.9, 0.999), weight_decay=0.0)
    episodes = _episodes(2, tokens, shape.vocab)
    settings = train.loss_settings()

    def update() -> Any:
        return update_policy(policy, optimizer, episodes, settings, seed=0)

    first = _seconds(update, lab)
    eager = seconds = min(_seconds(update, lab) for _ in range(2))
    used = torch.cuda.max_memory_allocated() if lab.on_gpu else 0
    compiled = compiles("auto", lab.device, "vllm")  # else this machine lacks what kernels are made with
    if compiled:
        policy.compile_layers()
        update()
        seconds = min(_seconds(update, lab) for _ in range(2))
    metrics = update()
    found = [
        Measurement("first update, s", first),
        Measurement("tokens/s", 2 * tokens / seconds),
        Measurement("gradient norm", metrics["train/grad_norm"], least=1e-12, most=1e12),
    ]
    if lab.on_gpu:
        gpu = gpu_named(torch.cuda.get_device_name())
        known = gpu or GPU(989, 3.35)  # without a promise
        plan = Plan(train=train, gpu_gb=lab.gpu_bytes / 1e9, peak_tflops=known.tflops)
        paper = update_time_of(plan, episode_tokens=tokens, bandwidth=known.terabytes * 1e12)
        share = paper.seconds / seconds
        planned = sum(memory_of(plan).update.values())
        found += [
            Measurement(f"MFU, of {known.tflops:g} TFLOP/s", paper.mfu * share),
            Measurement("speed / speed on paper", share, least=_KEPT if gpu else 0.0, speed=True),
            Measurement("memory / planned memory", used / planned, least=0.9, most=1.1),
        ]
    if compiled:
        found.append(Measurement("speed compiled / eager", eager / seconds, least=1.0, speed=True))
    return found


def sharded_update(lab: Lab, ranks: Ranks) -> list[Measurement]:
    """On each rank: updates of all weights over shards (FSDP2), with AdamW's moments in the host's memory between them."""
    tokens = 8192 if lab.on_gpu else 256
    train = GRPOConfig(
        model="Qwen2.5-7B",
        env="EH-BFCL-v0",
        dtype="bfloat16" if lab.on_gpu else "float32",
        gradient_checkpointing=True,
        max_context=tokens,
        tokens_per_microbatch=tokens,
    )
    if lab.on_gpu and not memory_of(Plan(train=train, gpus=ranks.size, gpu_gb=lab.gpu_bytes / 1e9)).fits:
        train = dataclasses.replace(train, model="Qwen2.5-1.5B")
    shape = KNOWN[train.model] if lab.on_gpu else _TINY
    policy = _policy(shape, dataclasses.replace(lab, device=ranks.device(lab.device)))
    ranks.shard(policy, ranks.device(lab.device))
    policy.checkpoint_activations(keep_attention=attention_fits(train, lab.gpu_bytes, ranks.size))
    optimizer = make_optimizer(policy.model, learning_rate=1e-6, betas=(0.9, 0.999), weight_decay=0.0)
    moments = HostMoments(optimizer)
    episodes = _episodes(2 * ranks.size, tokens, shape.vocab)
    norms: list[float] = []

    def update() -> None:
        moments.to_device()
        metrics = update_policy(policy, optimizer, episodes, train.loss_settings(), seed=0, ranks=ranks)
        norms.append(metrics["train/grad_norm"])
        moments.to_host()

    _seconds(update, lab)
    seconds = _seconds(update, lab)
    moved = sum(state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    there = _seconds(lambda: (moments.to_device(), moments.to_host()), lab)
    return [
        Measurement("parameters, 1e9", shape.parameters / 1e9),
        Measurement("ranks", ranks.size, least=2),
        Measurement("tokens/s", len(episodes) * tokens / seconds),
        Measurement("gradient norm", norms[-1], least=1e-12, most=1e12),
        Measurement("moments to the GPU and back, GB/s of all ranks", 2e-9 * moved / there),
    ]


def merged_engine(lab: Lab) -> list[Measurement]:
    """The same as `engine` with LoRA adapters, which are merged into the weights at each hand-over."""
    return engine(lab, lora_rank=32)


def engine(lab: Lab, *, lora_rank: int = 0) -> list[Measurement]:
    """Samples with a vLLM engine beside the model, lets it sleep, changes the weights and hands them over."""
    shape = KNOWN[_model(lab)] if lab.on_gpu else _TINY
    context, at_once = (2048, 64) if lab.on_gpu else (128, 4)
    policy = _policy(shape, lab)
    if lora_rank:
        add_lora(policy.model, lora_rank, seed=0)
    began = time.perf_counter()
    sampler = VLLMSampler(policy.model, policy.tokenizer, max_context=context, slots=at_once)
    found = [Measurement("start, s", time.perf_counter() - began)]
    prompts = np.random.default_rng(0).integers(3, shape.vocab, (at_once, context // 4)).tolist()

    def sample() -> Any:
        asked = [SampleRequest(i, prompt, context // 4, seed=i) for i, prompt in enumerate(prompts)]
        samples = sample_all(sampler, asked)
        for i in range(at_once):
            sampler.end_session(i)
        return samples

    sample()  # the first steps make kernels
    seconds = _seconds(sample, lab)
    free = torch.cuda.mem_get_info()[0] if lab.on_gpu else 0
    sampler.sleep()
    if lab.on_gpu:
        torch.cuda.synchronize()
        freed = (torch.cuda.mem_get_info()[0] - free) / (0.5 * lab.gpu_bytes)
        found.append(Measurement("share of its memory freed in sleep", freed, least=0.9))
    with torch.no_grad():  # such as no two weights, so that the old ones would be noticed
        for i, (name, parameter) in enumerate(policy.model.named_parameters()):
            parameter.mul_(1.0 + 0.1 * (i % 3))
            if "lora_B" in name:  # they begin as 0
                parameter.normal_(std=0.02)
    handed = _seconds(sampler.weights_changed, lab)
    sampled = sample()[0]
    ids = [*prompts[0], *sampled.ids]
    with torch.no_grad(), float32_logits(policy.model):
        logits = policy.model(input_ids=torch.tensor([ids], device=policy.model.device)).logits[0]
    logp = logits.log_softmax(-1)[len(prompts[0]) - 1 : -1].gather(
        1, torch.tensor(sampled.ids, device=logits.device)[:, None]
    )
    off = (logp.squeeze(1).cpu() - torch.tensor(sampled.logprobs)).abs().mean()
    size = sum(p.nbytes for p in policy.model.parameters())
    return [
        *found,
        Measurement("sampled tokens/s", at_once * (context // 4) / seconds),
        Measurement("hand-over, GB/s", size / 1e9 / handed, least=2.0 if lab.on_gpu else 0.0, speed=True),
        Measurement("engine - model after it, nats", float(off), most=0.05 if lab.on_gpu else 1e-3),
    ]


def small_cache(lab: Lab) -> list[Measurement]:
    """Evaluates with an engine whose cache holds a fraction of the episodes, so that most of them wait for each other.

    The environment is the cabinet, and what the model writes means nothing there: every episode takes all of its steps.
    """
    shape = KNOWN[_model(lab)] if lab.on_gpu else _TINY
    steps, written, slots = (8, 128, 64) if lab.on_gpu else (4, 16, 8)
    chat = _WordChat(shape.vocab, prompt=512 if lab.on_gpu else 64, observation=64 if lab.on_gpu else 32)
    context = chat.prompt + steps * (written + chat.observation)
    policy = _policy(shape, lab)
    held = sum(p.nbytes for p in policy.model.parameters())
    # The trainer's weights are not in vLLM's share. A step takes up to 3 GB, and the rest is the cache: some 40,000 tokens of 7B.
    share = (held + 5.5e9) / lab.gpu_bytes if lab.on_gpu else 0.5
    vllm._CPU_CACHE_BYTES = 0  # then a CPU's engine holds two of the longest episodes
    sampler = VLLMSampler(
        policy.model, policy.tokenizer, max_context=context, slots=slots, gpu_memory_utilization=share
    )
    environments = Environments("EH-Cabinet-v0", {"split": "test"}, slots, 0, "")
    requests = evaluation_requests(held_out_tasks(environments, slots // 4), 8, seed=0)
    sampler.cache_metrics()
    played: Any = None

    def play() -> None:
        nonlocal played
        rules = Rules(max_action_tokens=written, mode="streaming")
        played = play_policy(environments, sampler, chat, requests, rules, horizon=steps)  # type: ignore[arg-type]

    seconds = _seconds(play, lab)
    cache = sampler.cache_metrics()
    asked = sum(chat.prompt + i * (written + chat.observation) for t in played for i in range(t.length))
    unavoidable = slots // 4 * chat.prompt + sum((t.length - 1) * chat.observation for t in played)
    computed = asked * (1 - cache["rollout/cache_hits"]) / unavoidable
    return [
        Measurement("episodes at their end", sum(t.length == steps for t in played), least=len(requests)),
        Measurement("slots' tokens / the cache's", slots * context / sampler.cache_tokens, least=1.5),
        # Blocks add a little: a turn computes again what does not fill one.
        Measurement("prefill / unavoidable", computed, most=2.0 if lab.on_gpu else math.inf, speed=True),
        Measurement("preemptions", cache["rollout/cache_preemptions"], most=0, speed=True),
        Measurement("sampled tokens/s", sum(t.action_tokens for t in played) / seconds),
    ]


@dataclasses.dataclass(frozen=True)
class _WordChat:
    """A chat format of so many tokens, whatever the texts: a policy with random weights reads and writes nothing else."""

    words: int
    prompt: int
    observation: int
    stop_ids: frozenset[int] = frozenset()

    def prompt_ids(self, system_prompt: str, observation: str, tools: Any = ()) -> list[int]:
        return self._drawn(observation, self.prompt)

    def observation_ids(self, observation: str, *, stopped: bool) -> list[int]:
        return self._drawn(observation, self.observation)

    def read(self, ids: Any, tools: Any = ()) -> Reply:
        return Reply("wait()")

    def _drawn(self, text: str, length: int) -> list[int]:
        found: list[int] = np.random.default_rng(list(text.encode())).integers(3, self.words, length).tolist()
        return found


def _model(lab: Lab) -> str:
    if not lab.on_gpu:
        return "tiny"
    return "Qwen2.5-7B" if lab.gpu_bytes >= _LARGE_GPU else "Qwen2.5-1.5B"


def _policy(shape: ModelShape, lab: Lab, *, initializer_range: float = 0.02) -> Policy:
    dtype = torch.bfloat16 if lab.on_gpu else torch.float32
    shape = dataclasses.replace(shape, positions=max(shape.positions, 2048))
    model = fresh_qwen2(shape, eos_id=2, device=lab.device, dtype=dtype, initializer_range=initializer_range)
    model.set_attn_implementation(PACKED)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(shape.vocab)}, unk_token="w0"))
    nothing: Any = None
    return Policy(model, PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", pad_token="w0"), nothing)


def _episodes(count: int, length: int, words: int) -> list[Trajectory]:
    """One group: an eighth of each episode is the prompt; then 84 tokens are written for each 35 that are read, as in BFCL."""
    prompt = np.random.default_rng(0).integers(3, words, length // 8).tolist()
    found = []
    for i in range(count):
        t = Trajectory("0", 0, reward=float(i % 2))
        t.add_prompt(prompt)
        rest = length - len(prompt)
        t.ids += np.random.default_rng(1 + i).integers(3, words, rest).tolist()
        t.action_mask += [int(j % 119 < 84) for j in range(rest)]
        t.logprobs += [-float(np.log(words)) * written for written in t.action_mask[len(prompt) :]]
        found.append(t)
    return found


def _seconds(work: Callable[[], Any], lab: Lab) -> float:
    """How long some work takes, with what it left to the GPU."""
    began = time.perf_counter()
    work()
    if lab.on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - began
