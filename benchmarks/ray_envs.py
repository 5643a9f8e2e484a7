"""Environments in Ray actors and in this process: the time of a step.

    OMP_NUM_THREADS=1 python benchmarks/ray_envs.py | grep -v raylet > benchmarks/results/ray-envs-cpu.txt

Everything runs on one machine. A step on another machine takes the network's round trip in addition. "One at a time"
plays one environment from one thread: this is the latency of a step. "64 at once" plays 64 environments from 64
threads. Episodes are ground truth. Local and Ray take turns, and the figures are medians. EH-AppWorld is not measured,
because its steps take milliseconds anyway.
"""

from __future__ import annotations

import os
from typing import Any

from flags import new_parser, parse, print_heading, run
from played import HEADS, compared, make, scripts

from envs.actors import ActorPool, in_actors

ENVS: dict[str, dict[str, Any]] = {"EH-Cabinet-v0": {"split": "dev"}, "EH-BFCL-v0": {"split": "dev"}}


def main() -> None:
    """Prints the table."""
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
    print(f"Load average at the end: {os.getloadavg()[1]:.0f}")


if __name__ == "__main__":
    run(main)
