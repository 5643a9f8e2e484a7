"""Tokens per CPU-second of sampling the quick start's episodes: this project's sampler compared with transformers' `generate`.

    OMP_NUM_THREADS=1 python benchmarks/generation.py

Both play the same tasks with the same policy: 64 episodes in lockstep, in one thread. The baseline does what a simple agent
loop does. At every turn it pads all conversations on the left and calls `model.generate` on them, which computes each
conversation again. Repeats are interleaved, because the speed of a machine drifts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import gymnasium as gym
import torch
import transformers
from flags import command, new_parser, parse, run

import eh_gym
from eh_gym import FixedHorizon
from envs.runtime import cache_dir
from harness.policy.policy import Policy
from harness.quickstart.cloning import cached_warm_start
from harness.quickstart.tiny import new_tiny_policy
from harness.rollout.rollout import rollout
from harness.run.versions import cpu_name
from harness.sampling.transformers import TransformersSampler
from harness.settings.presets import preset
from harness.types.rules import EpisodeRequest, Rules
from harness.types.seeding import derive_seed


def with_sampler(policy: Policy, tasks: list[str], k: int) -> int:
    """Plays with the project's rollout; returns the number of sampled tokens."""
    envs = eh_gym.make_vec("EH-Cabinet-v0", len(tasks), FixedHorizon(k), record=False, max_workers=0)
    requests = [EpisodeRequest(task, i, seed=i) for i, task in enumerate(tasks)]
    sampler = TransformersSampler(policy.model)
    played = rollout(envs, sampler, policy.chat, requests, Rules(1.0, max_action_tokens=6))
    envs.close()
    return sum(t.action_tokens for t in played)


def with_generate(policy: Policy, tasks: list[str], k: int) -> int:
    """Plays with one `generate` call per turn over all live conversations; returns the number of sampled tokens."""
    torch.manual_seed(0)
    policy.model.eval()
    live = []
    for task in tasks:
        env = gym.make("EH-Cabinet-v0")
        observation, info = env.reset(options={"task_id": task})
        live.append((env, policy.chat.prompt_ids(info["system_prompt"], observation)))
    sampled, pad = 0, policy.tokenizer.pad_token_id
    for _ in range(k):
        width = max(len(ids) for _, ids in live)
        prompt = torch.tensor([[pad] * (width - len(ids)) + ids for _, ids in live])
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for _, ids in live])
        output = policy.model.generate(
            prompt,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=6,
            eos_token_id=sorted(policy.chat.stop_ids),
            pad_token_id=pad,
        )
        going = []
        for (env, ids), row in zip(live, output[:, width:].tolist(), strict=True):
            ends = [i for i, token in enumerate(row) if token in policy.chat.stop_ids]
            reply = row[: ends[0] + 1] if ends else row
            sampled += len(reply)
            observation, _, terminated, _, _ = env.step(policy.chat.read(reply).action)
            if not terminated:
                going.append((env, ids + reply + policy.chat.observation_ids(observation, stopped=bool(ends))))
        live = going
        if not live:
            break
    return sampled


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    args = parse(parser, episodes=4, horizon=4, repeats=1)
    torch.set_num_threads(1)
    env = gym.make("EH-Cabinet-v0")
    policy = new_tiny_policy(env, seed=derive_seed(0, "weights") % 2**31)
    if not args.smoke:
        cached_warm_start(cache_dir(), env, policy, preset([]).warm_start, seed=0)
    tasks = [f"train-{i:06d}" for i in range(args.episodes)]

    players: dict[str, Callable[[Policy, list[str], int], int]] = {"sampler": with_sampler, "generate": with_generate}
    rates: dict[str, list[float]] = {name: [] for name in players}
    for repeat in range(args.repeats + 1):
        for name, play in players.items():
            start = time.process_time()
            tokens = play(policy, tasks, args.horizon)
            if repeat:  # the first repeat warms the caches
                rates[name].append(tokens / (time.process_time() - start))
    ratios = [a / b for a, b in zip(rates["sampler"], rates["generate"], strict=True)]

    print(command())
    print(
        f"{args.episodes} episodes of EH-Cabinet-v0, K = {args.horizon}, {args.repeats} interleaved repeats, one thread"
    )
    print(f"{cpu_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{'':34} {'median':>8} {'min':>8} {'max':>8}")
    for name, title in (
        ("sampler", "this sampler, tokens per CPU-s"),
        ("generate", "generate per turn, tokens per CPU-s"),
    ):
        values = rates[name]
        print(f"{title:34} {statistics.median(values):8.0f} {min(values):8.0f} {max(values):8.0f}")
    print(f"{'ratio':34} {statistics.median(ratios):8.2f} {min(ratios):8.2f} {max(ratios):8.2f}")


if __name__ == "__main__":
    run(main)
