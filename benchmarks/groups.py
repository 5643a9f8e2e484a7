"""How many tokens the policy update computes, by the size of its micro-batches: each part of a group computes the prompt once.

    python benchmarks/groups.py

Episodes are drawn with BFCL's prompt of 2,350 tokens and the paper's numbers of turns, up to K = 50; half of them go on to K.
A turn has 90 to 350 tokens. `microbatches` of harness.policy.batch puts them together. "In order" splits a group in the order of
its episodes, for comparison. Nothing is trained, so the result is the same on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from flags import command, new_parser, parse, run

from harness.planning.length_laws import PAPER
from harness.policy.batch import fill, microbatches
from harness.types.trajectory import Trajectory

_PROMPT, _K = 2350, 50


def drawn(tasks: int, group: int, seed: int) -> list[Trajectory]:
    """Draws an update's episodes, group by group."""
    rng, law, found = np.random.default_rng(seed), PAPER["bfcl"], []
    for task in range(tasks):
        for _ in range(group):
            turns = min(_K, int(rng.choice(len(law.p), p=law.p)) + 1) if rng.random() < 0.5 else _K
            own = int(turns * rng.uniform(90, 350))
            found.append(Trajectory(str(task), task, ids=[0] * _PROMPT + rng.integers(1, 1000, own).tolist()))
    return found


def in_order(episodes: Sequence[Trajectory], group: int, capacity: int) -> list[list[int]]:
    """Splits each group where its next episode does not fit."""
    parts: list[tuple[list[int], int]] = []
    for i, t in enumerate(episodes):
        own = len(t.ids) - _PROMPT
        if i % group and parts[-1][1] + own <= capacity:
            parts[-1] = ([*parts[-1][0], i], parts[-1][1] + own)
        else:
            parts.append(([i], len(t.ids)))
    bins = fill([size for _, size in parts], capacity)
    return [list(itertools.chain.from_iterable(parts[part][0] for part in which)) for which in bins]


def computed(episodes: Sequence[Trajectory], parts: Sequence[Sequence[int]]) -> float:
    """The tokens that the micro-batches compute, by the tokens of all episodes."""
    prompts = sum(len({episodes[i].group for i in part}) for part in parts) * _PROMPT
    return (prompts + sum(len(t.ids) - _PROMPT for t in episodes)) / sum(len(t.ids) for t in episodes)


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16_384, 20_000, 32_768, 65_536])
    parser.add_argument("--seed", type=int, default=0)
    args = parse(parser, tasks=2, tokens=[16_384])
    episodes = drawn(args.tasks, args.group, args.seed)
    print(command())
    mean = np.mean([len(t.ids) for t in episodes])
    print(f"{len(episodes)} episodes of {mean:,.0f} tokens; computed tokens / all tokens, and micro-batches")
    print(f"{'tokens':>8}{'in order':>10}{'micro-batches':>15}{'now':>7}{'micro-batches':>15}")
    for tokens in args.tokens:
        before, now = in_order(episodes, args.group, tokens), microbatches(episodes, tokens)
        print(
            f"{tokens:8,}{computed(episodes, before):10.3f}{len(before):15}{computed(episodes, now):7.3f}{len(now):15}"
        )


if __name__ == "__main__":
    run(main)
