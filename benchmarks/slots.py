"""What the loop of a rollout costs a turn, from 64 to 1,024 episodes at once, without a model.

    OMP_NUM_THREADS=1 python benchmarks/slots.py > benchmarks/results/slots-cpu.txt

A sampler that needs no time answers the oldest 16 requests at each step. Each slot plays an episode of K messages in
EH-Cabinet, whose answers may have further words. All numbers of slots take turns. The figures are the medians of the
CPU time a turn, over that of the first number of slots.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Hashable
from typing import Any

import gymnasium as gym
from flags import new_parser, parse, print_heading, run

from eh_gym import ElasticTimeLimit, FixedHorizon
from eh_gym.vector import ThreadVectorEnv
from harness.clone.tiny import new_tiny_policy
from harness.rollout.rollout import rollout
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sample, SampleRequest


class _Quick:
    """A `Sampler` with a large cache that answers every request with the same tokens."""

    max_context, cache_tokens = 1_000_000, 1 << 40

    def __init__(self, ids: list[int]) -> None:
        self._ids, self._requests = ids, dict[Hashable, SampleRequest]()

    @property
    def pending(self) -> int:
        return len(self._requests)

    def submit(self, request: SampleRequest) -> None:
        self._requests[request.session] = request

    def step(self) -> list[tuple[SampleRequest, Sample]]:
        oldest = [self._requests.pop(name) for name in list(itertools.islice(self._requests, 16))]
        return [(request, Sample(self._ids, [-1.0] * len(self._ids), "stop", 0)) for request in oldest]

    def end_session(self, session: Hashable) -> None:
        self._requests.pop(session, None)


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--slots", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--horizons", nargs="+", type=int, default=[12, 100])
    parser.add_argument("--repeats", type=int, default=5)
    args = parse(parser, slots=[4, 8], horizons=[3], repeats=2)
    policy = new_tiny_policy(gym.make("EH-Cabinet-v0", split="train"), seed=0)
    sampler: Any = _Quick(policy.chat.reply_ids("list()"))

    def cost(slots: int, k: int, words: int) -> float:
        """Microseconds of CPU time a turn."""

        def made() -> gym.Env[Any, Any]:
            env = gym.make("EH-Cabinet-v0", split="train", disable_env_checker=True)
            longer = gym.wrappers.TransformObservation(env, lambda text: text + " closed" * words, None)
            return ElasticTimeLimit(longer, FixedHorizon(k), record=False)

        envs = ThreadVectorEnv([made] * slots, 0)
        requests = [EpisodeRequest(f"train-{i % 64:06d}", i, seed=i) for i in range(slots)]
        start = time.process_time()
        played = rollout(envs, sampler, policy.chat, requests, Rollout(rollout="streaming"))
        seconds = time.process_time() - start
        envs.close()
        return seconds / sum(t.length for t in played) * 1e6

    print_heading("gymnasium", "transformers")
    print(f"{'K':>4}{'words':>7}{'slots':>7}{'CPU time a turn':>17}")
    for words, k in itertools.product((0, 600), args.horizons):
        times = [[cost(slots, k, words) for slots in args.slots] for _ in range(args.repeats)]
        medians = [statistics.median(each) for each in zip(*times, strict=True)]
        for slots, median in zip(args.slots, medians, strict=True):
            print(f"{k:4}{words:7}{slots:7}{median / medians[0]:17.2f}", flush=True)


if __name__ == "__main__":
    run(main)
