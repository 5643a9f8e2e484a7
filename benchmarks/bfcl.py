"""BFCL episodes per second: ours compared with bfcl-eval's own runner and checker, and through gym with many
environments.

    python benchmarks/bfcl.py > benchmarks/results/bfcl-cpu.txt

The first part runs in one process with bfcl-eval's virtualenv. bfcl-eval and our code take turns at playing each
ground-truth episode from reset to verdict, so both see the same machine. The times are CPU seconds. bfcl-eval's code is
the one that the tests compare with (tests/envs/bfcl/official.py). Its printed output is discarded, and its optional
logs are off. Ours is shown cold, when the ground truth is replayed (once per entry), and warm. The second part plays
through `gym.make`, with a thread for
each environment. No model takes part: the messages are ground truth, made beforehand.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
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
    spec = importlib.util.spec_from_file_location("official", ROOT / "tests" / "envs" / "bfcl" / "official.py")
    assert spec is not None
    assert spec.loader is not None
    official = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(official)

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
        assert solved >= (entries - 1) * (rounds + 1), (
            solved
        )  # upstream fails a few entries because of its own aliasing
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


def through_gym(workers: int, environments: int, episodes: int, entries: int) -> tuple[float, float, float, int]:
    """Plays ground-truth episodes, a thread for each environment: seconds, CPU s here and of the workers, steps."""
    import os
    from concurrent.futures import ThreadPoolExecutor

    import gymnasium as gym

    import eh_gym  # noqa: F401 - registers the ids
    from eh_gym.worker import shared_pool

    envs = [gym.make("EH-BFCL-v0", split="all", workers=workers, disable_env_checker=True) for _ in range(environments)]
    tasks = [f"multi_turn_{category}_{i}" for category in CATEGORIES for i in range(entries)]
    scripts: dict[str, list[str]] = {}

    def record(index: int) -> None:
        env = envs[index]
        for task_id in tasks[index::environments]:
            env.reset(options={"task_id": task_id})
            scripts[task_id], done = [], False
            while not done:
                scripts[task_id].append(env.unwrapped.expert())  # type: ignore[attr-defined]
                done = bool(env.step(scripts[task_id][-1])[2])

    def play(index: int) -> int:
        env, steps = envs[index], 0
        for i in range(episodes // environments):
            task_id = tasks[(index + i * environments) % len(tasks)]
            env.reset(options={"task_id": task_id})
            for message in scripts[task_id]:
                _, reward, _, _, _ = env.step(message)
            assert reward == 1.0
            steps += len(scripts[task_id])
        return steps

    with ThreadPoolExecutor(environments) as threads:
        list(threads.map(record, range(environments)))
        list(threads.map(play, range(environments)))  # so that every worker has replayed every ground truth
        pool = shared_pool(workers, envs[0].unwrapped._command)  # type: ignore[attr-defined]

        def workers_s() -> float:  # as Linux tells it: user and system
            stats = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pool.pids]
            return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")

        start, own_s, in_workers_s = time.perf_counter(), time.process_time(), workers_s()
        steps = sum(threads.map(play, range(environments)))
        seconds, own_s, in_workers_s = (
            time.perf_counter() - start,
            time.process_time() - own_s,
            workers_s() - in_workers_s,
        )
    for env in envs:
        env.close()
    return seconds, own_s, in_workers_s, steps


def main() -> None:
    """Prints both tables."""
    import os
    from importlib.metadata import version

    from flags import command, new_parser, parse

    from envs.backends import backend_python, get_backend
    from harness.records.versions import cpu_name

    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="the interleaved rounds of the first part")
    parser.add_argument("--entries", type=int, default=200, help="the number of tasks of each category, at most 200")
    parser.add_argument("--environments", type=int, default=32, help="the environments of the second part")
    parser.add_argument("--workers", type=int, default=1, help="the worker processes of the second part")
    parser.add_argument("--episodes", type=int, default=3200, help="the episodes of the second part")
    args = parse(parser, rounds=4, entries=4, environments=4, episodes=16)
    cores = os.cpu_count() or 1
    print(command())
    print(f"machine     {cpu_name()}, {cores} cores, load {os.getloadavg()[0]:.0f}")
    print(f"versions    Python {platform.python_version()}, gymnasium {version('gymnasium')}", end="")
    print("".join(f", {name} {pinned}" for name, pinned in get_backend("bfcl").requirements.items()))

    process = [str(backend_python("bfcl")), str(Path(__file__).resolve()), "--one-process"]
    process += [str(args.rounds), str(args.entries)]
    done = subprocess.run(process, stdout=subprocess.PIPE, text=True, check=True)
    table = json.loads(done.stdout)
    print(
        f"\nOne process, ground-truth episodes from reset to verdict, "
        f"{args.rounds} rounds of {args.entries} interleaved, CPU ms an episode"
    )
    print(
        f"{'category':<14}{'bfcl-eval':>10}{'ours cold':>11}{'ours':>7}{'ratio':>8}"
        f"{'ours, episodes/s':>18}{'steps/s':>9}"
    )
    total: dict[str, float] = {}
    for name, row in table.items():
        for key, value in row.items():
            total[key] = total.get(key, 0.0) + value
        _row(name, row, args.rounds, args.entries)
    _row("all", total, args.rounds, args.entries * len(table))

    # As many in each thread; each is played once before the clock starts.
    episodes = args.episodes // args.environments * args.environments
    seconds, here, there, steps = through_gym(args.workers, args.environments, episodes, args.entries)
    print(
        f"\nThrough gym: {args.environments} environments, a thread each, worker processes: {args.workers}, all splits"
    )
    print(
        f"{episodes} episodes: {episodes / seconds:,.0f} episodes/s, {steps / seconds:,.0f} steps/s; "
        f"CPU ms an episode: {1000 * here / episodes:.2f} here, {1000 * there / episodes:.2f} in the workers, "
        f"{1000 * (here + there) / episodes:.2f} in all"
    )


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
