#!/usr/bin/env python
"""REINFORCE on EH-Cabinet with an elastic horizon: everything in one loop, to read and to change.

The policy sees the kind of the last answer and its own last call, and chooses one of five calls. The drawer or code in
a call is the one that the answers named last. This draws the figure, 3 seeds from K0 = 10 and from K0 = 50 (one CPU
core, a minute):

    python examples/reinforce.py --seeds 3 --updates 120 --out examples/figures/reinforce.svg
"""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path

import torch
from drawing import Log, draw_k_and_success, train_all

import eh_gym

CALLS = ["open({0})", "read()", "close()", "list()", "submit({0})"]
ANSWERS = ["start", "ok", "next", "code", "empty", "error", "closed", "open"]


class Reader:
    """Tracks what the policy sees of one episode, as two rows of its table, and the drawer or code that was named
    last.
    """

    def __init__(self, answer: str) -> None:
        self.name, self.seen = "", [0, len(ANSWERS) + len(CALLS)]
        self.hear(answer)

    def hear(self, answer: str) -> None:
        """Takes the next answer."""
        self.seen[0] = ANSWERS.index(answer.split()[0])
        if match := re.match(r"(?:start|next|code) (.+)", answer):
            self.name = match[1].replace(" ", "")

    def act(self, call: int) -> str:
        """Returns the text of a call."""
        self.seen[1] = len(ANSWERS) + call
        return CALLS[call].format(self.name)


def train(env_id: str, k0: int, seed: int, updates: int, slots: int = 64) -> Log:
    """Trains one run; returns K and the share of successes for each update."""
    torch.manual_seed(seed)
    controller = eh_gym.ElasticHorizon(k0=k0)
    envs = eh_gym.make_vec(env_id, slots, controller, max_workers=0)
    logits = torch.nn.EmbeddingBag(len(ANSWERS) + len(CALLS) + 1, len(CALLS), mode="sum")
    torch.nn.init.zeros_(logits.weight)
    optimizer = torch.optim.Adam(logits.parameters(), lr=0.05)
    history = []
    for update in range(updates):
        answers, _ = envs.reset(seed=seed * 1_000_000 + update * slots)
        readers, live, k = [Reader(answer) for answer in answers], list(range(slots)), controller.horizon
        logps, rewards = [[] for _ in range(slots)], torch.zeros(slots)
        while live:
            policy = torch.distributions.Categorical(logits=logits(torch.tensor([readers[i].seen for i in live])))
            calls = policy.sample()
            steps = [envs.submit_step(i, readers[i].act(int(call))) for i, call in zip(live, calls, strict=True)]
            playing, live = live, []
            for i, logp, step in zip(playing, policy.log_prob(calls), steps, strict=True):
                answer, rewards[i], terminated, truncated, _ = step.result()
                logps[i].append(logp)
                if not (terminated or truncated):  # the wrapper tells the controller of each end
                    readers[i].hear(answer)
                    live.append(i)
        advantages = rewards - rewards.mean()
        loss = -sum(a * torch.stack(logp).sum() for a, logp in zip(advantages, logps, strict=True)) / slots
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        controller.update()  # K moves once per update
        history.append({"horizon/k": float(k), "rollout/success": rewards.mean().item()})
    return history


def main(argv: list[str] | None = None) -> None:
    """Trains and draws."""
    flags = argparse.ArgumentParser(description="REINFORCE on EH-Cabinet with an elastic horizon")
    flags.add_argument("--seeds", type=int, default=1)
    flags.add_argument("--updates", type=int, default=150)
    flags.add_argument("--out", type=Path, default=Path("reinforce.svg"))
    args = flags.parse_args(argv)
    logs = train_all(partial(train, updates=args.updates), ["EH-Cabinet-v0"], (10, 50), args.seeds)
    draw_k_and_success(logs, "REINFORCE: mean and range of the seeds", "horizon/k", args.out)


if __name__ == "__main__":
    main()
