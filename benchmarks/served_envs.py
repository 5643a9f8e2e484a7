"""Environments over OpenEnv and in this process: the time of a step, and the memory of the server.

    OMP_NUM_THREADS=1 python benchmarks/served_envs.py > benchmarks/results/openenv-cpu.txt

Server (`python -m envs serve`) and client (EH-Remote-v0) run on one machine. Over a network each step takes its round
trip in addition. "One at a time" plays one environment from one thread: this is the latency of a step. "64 at once"
plays 64
environments from 64 threads, each over a session of its own: this bounds a rollout whose sampler needs no time.
Episodes are ground truth, with messages made beforehand. In this process and over OpenEnv take turns, and the figures
are medians. Memory is
PSS: a page that n processes share counts as 1/n of a page for each. It is the server's process alone, without the
processes that the environments start, which are the same in both ways, after the episodes of its row.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import gymnasium as gym
from flags import command, new_parser, parse, run
from played import Script, microseconds, pss_mb, scripts

import eh_gym  # noqa: F401 - registers the ids
from eh_gym.errors import EHError
from harness.records.versions import cpu_name

SPLITS = {"EH-Cabinet-v0": "dev", "EH-CabinetLocked-v0": "dev", "EH-BFCL-v0": "dev", "EH-AppWorld-v0": "mini"}
MORE = {"EH-AppWorld-v0": {"step_timeout_s": 600.0}}  # 64 worlds on few cores are slow


@contextmanager
def served(env_id: str, sessions: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Serves an environment in a process of its own; yields its id and what EH-Remote-v0 takes."""
    token = secrets.token_urlsafe()
    words = ["-m", "envs", "serve", env_id, "--split", SPLITS[env_id], "--port", "0", "--max-sessions", str(sessions)]
    words += ["--env-args", json.dumps(MORE.get(env_id, {}))]
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, env={**os.environ, "EH_ENV_TOKEN": token}
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise EHError(f"{env_id} could not be served; its own message is above")
        yield process.pid, {"url": line.split()[-1], "token": token}
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def compare(
    env_id: str, remote: dict[str, Any], envs: int, some: Sequence[Script], repeats: int
) -> tuple[float, float]:
    """Returns the median microseconds per step, local and over OpenEnv."""
    count = 20 if envs == 1 else 2  # the episodes of each environment in one repeat
    if env_id == "EH-AppWorld-v0":  # its episodes take half a second each
        count = 4 if envs == 1 else 1
    arguments = {"split": SPLITS[env_id], **MORE.get(env_id, {})}
    local = [gym.make(env_id, disable_env_checker=True, **arguments) for _ in range(envs)]
    served = [gym.make("EH-Remote-v0", disable_env_checker=True, **remote) for _ in range(envs)]
    for some_envs in (local, served):
        microseconds(some_envs, some, 1)  # warms the caches
    times = [(microseconds(local, some, count), microseconds(served, some, count)) for _ in range(repeats)]
    for env in (*local, *served):
        env.close()
    local, far = zip(*times, strict=True)
    return statistics.median(local), statistics.median(far)


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--envs", nargs="+", default=list(SPLITS), choices=list(SPLITS))
    parser.add_argument("--many", type=int, default=64, help='the sessions that play "at once"')
    parser.add_argument("--repeats", type=int, default=5)
    args = parse(parser, envs=["EH-Cabinet-v0"], many=4, repeats=1)
    packages = ", ".join(f"{name} {version(name)}" for name in ("gymnasium", "openenv", "uvicorn", "websockets"))
    print(command())
    print(f"machine     {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    print(f"versions    Python {platform.python_version()}, {packages}")
    print("\nMicroseconds of a step, resets included: in this process, over OpenEnv; the server's memory, MB (PSS)")
    print(f"{'environment':<21}{'played':<16}{'local':>8}{'openenv':>9}{'ratio':>8}{'more':>8}{'server':>8}")
    for env_id in args.envs:
        some = scripts(env_id, {"split": SPLITS[env_id]})
        with served(env_id, args.many) as (pid, remote):
            for name, envs in (("one at a time", 1), (f"{args.many} at once", args.many)):
                local, far = compare(env_id, remote, envs, some, args.repeats)
                print(
                    f"{env_id:<21}{name:<16}{local:>8.0f}{far:>9.0f}"
                    f"{far / local:>7.1f}x{far - local:>8.0f}{pss_mb(pid):>8.0f}",
                    flush=True,
                )
    print(f"Load average at the end: {os.getloadavg()[1]:.0f}")


if __name__ == "__main__":
    run(main)
