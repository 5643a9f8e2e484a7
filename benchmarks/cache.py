"""How many tokens an engine computes for the prompts of a rollout, by who is admitted: vLLM's prefix cache, simulated.

    python benchmarks/cache.py

The cache has blocks of 16 tokens, as vLLM's (0.32). A request needs blocks for its whole context and for what it will
write; it waits until that many are free. When a request ends, its blocks stay in the cache and become free, the last of
them first. The blocks that have been free for longest are taken for other requests. The next turn of an episode finds
the blocks that are left, from the beginning of its context; the rest is computed again. The episodes of a task share
the blocks of their prompt. After every turn an episode waits for its environment while others go on, so turns go round
robin.

unavoidable   the tokens of the prompts of the tasks once each, and every observation once, in millions
all           the tokens that are computed if every slot plays, divided by the unavoidable ones
admitted      the same under `harness.rollout.slots.fits`, the rule that every rollout follows
together      the mean number of episodes that take a turn at the same time under this rule

An update on one GPU has 16 tasks of 8 episodes, an evaluation 168 of 8; of eight GPUs each has an eighth of both. The
cache is what the recipes leave to the engine on a GPU of 80 GB. Episodes are drawn: 20 to 50 turns, about 18 thousand
tokens each; with "half short" half of them end after 4 turns.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
from flags import command, new_parser, parse, run

from harness.rollout.slots import fits

_BLOCK = 16


@dataclass
class Episode:
    """The tokens of one episode: its task, its prompt, and what is written and read in each turn."""

    task: int
    prompt: int
    turns: list[tuple[int, int]]


class Cache:
    """Free blocks. Those that still hold something belong to an owner, an episode or a task's prompt."""

    def __init__(self, blocks: int) -> None:
        self.unused = blocks
        self._free: OrderedDict[object, int] = OrderedDict()  # by owner; the first has been free for longest

    @property
    def available(self) -> int:
        """What a request can have."""
        return self.unused + sum(self._free.values())

    def take_back(self, owner: object) -> int:
        """Takes the owner's own free blocks into use again, and returns how many are left of them."""
        return self._free.pop(owner, 0)

    def take(self, blocks: int) -> None:
        """Takes blocks: unused ones, and then those that have been free for longest."""
        new = min(blocks, self.unused)
        self.unused -= new
        blocks -= new
        while blocks:
            owner, held = next(iter(self._free.items()))
            taken = min(held, blocks)
            blocks -= taken
            if taken == held:
                del self._free[owner]
            else:
                self._free[owner] = held - taken  # from its end: the beginning can still be found

    def give(self, owner: object, blocks: int) -> None:
        """Frees blocks that hold what the owner will need again."""
        self._free[owner] = blocks


def simulate(episodes: list[Episode], blocks: int, slots: int, *, admit: bool) -> tuple[int, float]:
    """Plays all episodes; returns the tokens computed for prompts, and the mean number of requests that ran together.

    With `admit`, the episodes are admitted as in `harness.rollout.slots`.
    """
    cache, waiting = Cache(blocks), deque(range(len(episodes)))
    tokens = blocks * _BLOCK if admit else 10**12
    turn = [0] * len(episodes)
    context = [e.prompt for e in episodes]
    users: dict[int, int] = {}  # of a task's prompt, the running requests
    held: dict[int, int] = {}  # of a running request, its own blocks
    queue: list[int] = []  # the live episodes, in the order in which they became ready
    computed, ran, rounds, longest = 0, 0, 0, 0
    while queue or waiting:
        begun: dict[int, int] = {}  # their prompts are not known before the environments have answered
        while waiting and len(queue) + len(begun) < slots:
            live = {i: context[i] for i in queue} | begun
            if not fits(longest, sum(live.values()), tokens):
                break
            begun[waiting.popleft()] = longest
        queue += begun
        longest = max([longest, *(episodes[i].prompt for i in begun)])
        live = {i: context[i] for i in sorted(queue)}  # in the order of beginning
        older = itertools.accumulate(live.values(), initial=0)
        playing = {i for i, before in zip(live, older, strict=False) if fits(live[i], before, tokens)}
        running: list[int] = []
        for i in [i for i in queue if i in playing]:
            e, task = episodes[i], ("prompt", episodes[i].task)
            shared = e.prompt // _BLOCK
            own = -(-(context[i] + e.turns[turn[i]][0]) // _BLOCK) - shared
            prompt_used = users.get(e.task, 0) > 0
            if own + (0 if prompt_used else shared) > cache.available:
                break
            prompt_found = shared if prompt_used else cache.take_back(task)
            if not prompt_used:
                cache.take(shared - prompt_found)
            found = cache.take_back(i)
            cache.take(own - found)
            users[e.task] = users.get(e.task, 0) + 1
            held[i] = own
            usable = found if prompt_found == shared else 0  # a block can be found only if all before it can
            computed += max(1, context[i] - (prompt_found + usable) * _BLOCK)
            running.append(i)
        assert running, "the cache cannot hold one episode"
        ran, rounds = ran + len(running), rounds + 1
        queue = [i for i in queue if i not in held]
        for i in running:
            e = episodes[i]
            written, read = e.turns[turn[i]]
            context[i] += written + read
            turn[i] += 1
            cache.give(i, held.pop(i))
            users[e.task] -= 1
            if not users[e.task]:
                cache.give(("prompt", e.task), e.prompt // _BLOCK)
            if turn[i] < len(e.turns):
                queue.append(i)
    return computed, ran / rounds


def unavoidable(episodes: list[Episode]) -> int:
    """The tokens that any engine must compute: each task's prompt once, and each observation that is answered."""
    prompts = {e.task: e.prompt for e in episodes}
    return sum(prompts.values()) + sum(read for e in episodes for _, read in e.turns[:-1])


def drawn(tasks: int, group: int, tokens: int, short: float, rng: np.random.Generator) -> list[Episode]:
    """Draws episodes of about `tokens` tokens, a third of them written. The share `short` has 4 turns."""
    episodes = []
    for task in range(tasks):
        prompt = int(rng.integers(1300, 3400))
        for _ in range(group):
            count = 4 if short and rng.random() < short else int(rng.integers(20, 51))
            each = (tokens - prompt) / 35  # the mean number of turns
            turns = [rng.poisson((each / 3, 2 * each / 3)) for _ in range(count)]
            episodes.append(Episode(task, prompt, [(int(written), int(read)) for written, read in turns]))
    return episodes


_KV_BYTES = {"Qwen2.5-7B": 2 * 28 * 512 * 2, "Qwen2.5-14B": 2 * 48 * 1024 * 2}
"""Of one token in bfloat16: the keys and values of each layer, and their width."""
_CASES = (("Qwen2.5-7B", 34.2, 1), ("Qwen2.5-7B", 22.4, 8), ("Qwen2.5-14B", 20.4, 1), ("Qwen2.5-14B", 20.4, 8))
"""The model, the cache in GB, and the GPUs: LoRA on one (utilisation .65), all parameters on eight (.5, 14B .65)."""


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    args = parse(parser)
    tokens, tasks_of_all = (6_000, 8) if args.smoke else (18_000, 168)
    print(command())
    print(f"{'model':12}{'GPUs':>5}{'cache GB':>9}{'tokens':>9} {'what':22}{'episodes':>9}{'unavoidable':>12}", end="")
    print(f"{'all':>6}{'admitted':>9}{'together':>9}")
    for model, size, gpus in _CASES:
        blocks = int(size * 1e9 / _KV_BYTES[model] / _BLOCK)
        for what, tasks, short in (
            ("update", 16, 0.0),
            ("evaluation", tasks_of_all, 0.0),
            ("update, half short", 16, 0.5),
            ("evaluation, half short", tasks_of_all, 0.5),
        ):
            rng = np.random.default_rng(0)
            episodes = drawn(tasks // gpus, 8, tokens, short, rng)
            least = unavoidable(episodes)
            # Before the rule, an evaluation played 128 episodes on each of the GPUs.
            every, _ = simulate(episodes, blocks, 128 if what.startswith("eval") else 128 // gpus, admit=False)
            computed, together = simulate(episodes, blocks, 128 // gpus, admit=True)
            print(f"{model:12}{gpus:5}{size:9.1f}{blocks * _BLOCK:9,} {what:22}{len(episodes):9,}", end="")
            print(f"{least / 1e6:12.2f}{every / least:6.1f}{computed / least:9.2f}{together:9.1f}", flush=True)


if __name__ == "__main__":
    run(main)
