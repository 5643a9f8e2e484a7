"""Environments in Ray actors and in this process: the time of a step, an actor's memory, and the cost of losing one.

    OMP_NUM_THREADS=1 python benchmarks/ray_envs.py | grep -v raylet > benchmarks/results/ray-envs-cpu.txt

Everything runs on one machine. A step on another machine takes the network's round trip in addition. "One at a time"
plays one environment from one thread: this is the latency of a step. "64 at once" plays 64 environments from 64
threads. Episodes are ground truth. Local and Ray take turns, and the
figures are medians. Memory is PSS. EH-AppWorld is not measured, because its steps take milliseconds anyway.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import gymnasium as gym
import psutil
from flags import new_parser, parse, print_heading, run
from played import HEADS, compared, make, microseconds, pss_mb, scripts

from envs.actors import ActorPool, in_actors

ENVS: dict[str, dict[str, Any]] = {"EH-Cabinet-v0": {"split": "dev"}, "EH-BFCL-v0": {"split": "dev"}}


def processes(mark: str) -> Iterator[psutil.Process]:
    """Yields this process's descendants whose command line contains `mark`."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if mark in " ".join(process.cmdline()):
                yield process


def memory(actors: int, env_id: str, envs: int, **arguments: Any) -> tuple[float, float]:
    """Returns the PSS in MB of an actor and of its backend's processes. The actors share the environments equally."""
    pool = ActorPool(actors, cpus=0)
    there = make(envs, in_actors(env_id, pool), **ENVS[env_id], **arguments)
    microseconds(there, scripts(env_id, ENVS[env_id]), 2)
    pids = [process.pid for process in processes("ray::EnvHost")]
    assert len(pids) == actors, pids
    workers = [process.pid for process in processes("worker/child.py") if process.ppid() in pids]
    megabytes = sum(map(pss_mb, pids)) / actors, sum(map(pss_mb, workers)) / actors
    pool.close()
    time.sleep(2.0)
    return megabytes


def loss() -> tuple[float, float]:
    """Returns the seconds from an actor's kill to the answer of its next step, and to the first reset in a new one."""
    pool = ActorPool(1, cpus=0)
    env = gym.make(in_actors("EH-Cabinet-v0", pool), disable_env_checker=True)
    env.reset(seed=0)
    (process,) = processes("ray::EnvHost")
    start = time.perf_counter()
    process.kill()
    assert "environment_error" in env.step("list()")[4]
    noticed = time.perf_counter() - start
    env.reset(seed=0)
    again = time.perf_counter() - start
    pool.close()
    return noticed, again


def main() -> None:
    """Prints all tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=list(ENVS))
    parser.add_argument("--many", type=int, default=64, help='the environments that play "at once"')
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 4, 8], help="the actors that play these")
    parser.add_argument("--repeats", type=int, default=5)
    args = parse(parser, envs=["EH-Cabinet-v0"], many=4, actors=[2], repeats=1)
    print_heading("gymnasium", "ray")
    print("\nMicroseconds of a step, resets included: in this process, in actors")
    print(f"{'environment':<15}{'played':<16}{'actors':>6}{HEADS}")
    for env_id in args.envs:
        some = scripts(env_id, ENVS[env_id])
        for name, envs, actors in (
            ("one at a time", 1, 1),
            *((f"{args.many} at once", args.many, actors) for actors in args.actors),
        ):
            pool, arguments = ActorPool(actors, cpus=0), ENVS[env_id]
            both = make(envs, env_id, **arguments), make(envs, in_actors(env_id, pool), **arguments)
            row = compared(*both, some, 20 if envs == 1 else 2, args.repeats)
            pool.close()
            print(f"{env_id:<15}{name:<16}{actors:>6}{row}", flush=True)
    print("\nMemory of an actor, MB (PSS)")
    print(f"{'environment':<15}{'environments':>13}{'actor':>9}{'its backend processes':>23}")
    for env_id, envs, arguments in (
        ("EH-Cabinet-v0", 1, {}),
        ("EH-Cabinet-v0", 16, {}),
        ("EH-BFCL-v0", 16, {"workers": 1}),
        ("EH-BFCL-v0", 16, {}),
    ):
        if env_id not in args.envs:
            continue
        actor, workers = memory(2, env_id, 2 * envs, **arguments)
        told = f"{workers:.0f} ({arguments.get('workers', 4)})" if workers else "-"
        print(f"{env_id:<15}{envs:>13}{actor:>9.0f}{told:>23}", flush=True)
    noticed, again = map(statistics.median, zip(*(loss() for _ in range(args.repeats)), strict=True))
    print(f"\nA killed actor: noticed after {noticed:.2f} s, a new one plays after {again:.1f} s")
    print(f"Load average at the end: {os.getloadavg()[1]:.0f}")


if __name__ == "__main__":
    run(main)
