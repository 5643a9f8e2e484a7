"""BFCL episodes per second: ours beside bfcl-eval's own runner and checker, and through gym with many environments.

    python benchmarks/bfcl.py > benchmarks/results/bfcl-cpu.txt

The first part runs in one process with bfcl-eval's virtualenv. bfcl-eval and our code take turns at playing each
ground-truth episode from reset to verdict, in CPU seconds. bfcl-eval's code is the one that the tests compare with
(tests/envs/bfcl/official.py). Its printed output is discarded, and its optional logs are off. Ours is shown cold, when
the ground truth is replayed (once per entry), and warm. The second part plays through `gym.make`, with a thread for
each environment. No model takes part.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


def one_process(rounds: int, entries: int) -> None:
    """Runs inside the virtualenv and prints the CPU seconds of each category as JSON. A cold round comes first."""
    package: Any = types.ModuleType("eh_backend")
    package.__path__ = [str(ROOT / "envs" / "bfcl" / "backend")]
    sys.modules["eh_backend"] = package
    ours = importlib.import_module("eh_backend.worker")
    sys.path[0] = str(ROOT / "tests" / "envs" / "bfcl")
    official = importlib.import_module("official")

    def play(task_id: str, messages: list[str]) -> tuple[bool, int]:
        ours.handle("start", {"session": 1, "task_id": task_id, "action_format": "python", "prompt": "compact"})
        for message in messages:
            result = ours.handle("step", {"session": 1, "action": message})
        assert result["done"]
        return result["success"], len(messages)

    table = {}
    for category in CATEGORIES:
        tasks = [f"multi_turn_{category}_{i}" for i in range(entries)]
        for task_id in tasks:
            official.entry_of(task_id)  # both have read the files before the clock starts
        seconds = {"official": 0.0, "cold": 0.0, "warm": 0.0}
        scripts = {task_id: script(ours, task_id) for task_id in tasks}
        importlib.import_module("eh_backend.episode").task_of.cache_clear()
        steps = solved = 0
        for round_ in range(rounds + 1):
            random.Random(round_).shuffle(tasks)
            for task_id in tasks:
                start = time.process_time()
                success, count = play(task_id, [m for turn in scripts[task_id] for m in turn])
                middle = time.process_time()
                verdict = official.play(task_id, scripts[task_id], "python")
                end = time.process_time()
                seconds["cold" if round_ == 0 else "warm"] += middle - start
                seconds["official"] += end - middle if round_ else 0.0
                steps += count if round_ else 0
                solved += success and verdict["valid"]
        # Upstream fails a few entries because of its own aliasing.
        assert solved >= (entries - 1) * (rounds + 1), solved
        table[category] = {**seconds, "steps": steps}
    print(json.dumps(table))


def script(ours: Any, task_id: str) -> list[list[str]]:
    """Returns the expert's messages of each turn, including the message that ends it."""
    ours.handle("start", {"session": 1, "task_id": task_id, "action_format": "python", "prompt": "compact"})
    turns: list[list[str]] = [[]]
    while True:
        message = ours.handle("expert", {"session": 1})
        result = ours.handle("step", {"session": 1, "action": message})
        turns[-1].append(message)
        if result["done"]:
            return turns
        if not result["calls"]:
            turns.append([])


def through_gym(environments: int, episodes: int, entries: int) -> tuple[float, float, float, int]:
    """Plays ground-truth episodes, a thread for each environment: seconds, CPU s here and of the workers, steps."""
    from concurrent.futures import ThreadPoolExecutor

    import gymnasium as gym
    from played import play, scripts

    from eh_gym.worker import shared_pool

    arguments = {"split": "all", "workers": 1}
    tasks = [f"multi_turn_{category}_{i}" for category in CATEGORIES for i in range(entries)]
    played = scripts("EH-BFCL-v0", arguments, tasks)
    envs: list[Any] = [gym.make("EH-BFCL-v0", disable_env_checker=True, **arguments) for _ in range(environments)]
    shares = [played[index::environments] for index in range(environments)]
    pool = shared_pool(1, envs[0].unwrapped._command)

    def workers_s() -> float:  # as Linux tells it: user and system
        stats = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pool.pids]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")

    with ThreadPoolExecutor(environments) as threads:
        for _ in range(2):  # first so that every worker has replayed every ground truth
            before = time.perf_counter(), time.process_time(), workers_s()
            steps = sum(threads.map(play, envs, shares, [episodes // environments] * environments))
            after = time.perf_counter(), time.process_time(), workers_s()
    for env in envs:
        env.close()
    seconds, here, there = (b - a for a, b in zip(before, after, strict=True))
    return seconds, here, there, steps


def main() -> None:
    """Prints both tables."""
    from flags import new_parser, parse, print_heading

    from envs.backends import backend_python, get_backend

    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="the interleaved rounds of the first part")
    parser.add_argument("--entries", type=int, default=200, help="the number of tasks of each category, at most 200")
    parser.add_argument("--environments", type=int, default=32, help="the environments of the second part")
    parser.add_argument("--episodes", type=int, default=3200, help="the episodes of the second part")
    args = parse(parser, rounds=4, entries=4, environments=4, episodes=16)
    print_heading("gymnasium", **get_backend("bfcl").requirements)

    process = [str(backend_python("bfcl")), str(Path(__file__).resolve()), "--one-process"]
    process += [str(args.rounds), str(args.entries)]
    done = subprocess.run(process, stdout=subprocess.PIPE, text=True, check=True)
    table = json.loads(done.stdout)
    print("\nOne process, ground-truth episodes from reset to verdict, ", end="")
    print(f"{args.rounds} rounds of {args.entries} interleaved, CPU ms an episode")
    print("category       bfcl-eval  ours cold   ours   ratio  ours, episodes/s  steps/s")
    for name, row in table.items():
        _row(name, row, args.rounds, args.entries)
    total = {key: sum(row[key] for row in table.values()) for key in row}
    _row("all", total, args.rounds, args.entries * len(table))

    # As many in each thread; each is played once before the clock starts.
    episodes = args.episodes // args.environments * args.environments
    seconds, here, there, steps = through_gym(args.environments, episodes, args.entries)
    print(f"\nThrough gym: {args.environments} environments, a thread each, worker processes: 1, all splits")
    print(f"{episodes} episodes: {episodes / seconds:,.0f} episodes/s, {steps / seconds:,.0f} steps/s", end="")
    here, there = 1000 * here / episodes, 1000 * there / episodes
    print(f"; CPU ms an episode: {here:.2f} here, {there:.2f} in the workers, {here + there:.2f} in all")


def _row(name: str, row: dict[str, float], rounds: int, tasks: int) -> None:
    episodes = tasks * rounds
    official, warm = 1000 * row["official"] / episodes, 1000 * row["warm"] / episodes
    cold = 1000 * row["cold"] / tasks
    print(f"{name:<14}{official:>10.2f}{cold:>11.2f}{warm:>7.2f}{official / warm:>7.1f}x{1000 / warm:>18,.0f}", end="")
    print(f"{row['steps'] / row['warm']:>9,.0f}")


if __name__ == "__main__":
    if "--one-process" in sys.argv:  # then it is bfcl-eval's Python, which has neither gymnasium nor our packages
        one_process(*map(int, sys.argv[2:]))
    else:
        from flags import run

        run(main)
