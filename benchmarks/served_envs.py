"""Environments over OpenEnv and in this process: the time of a step, and the memory of the server.

    OMP_NUM_THREADS=1 python benchmarks/served_envs.py > benchmarks/results/openenv-cpu.txt

Server (`python -m envs serve`) and client (EH-Remote-v0) run on one machine. Over a network each step takes its round
trip in addition. "One at a time" is the latency of a step. "64 at once" plays 64 environments from 64 threads, each
over a session of its own. Episodes are ground truth. Both ways take turns, and the figures are medians. Memory is PSS
of the server's process after the episodes of its row, without the processes that its environments start.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from flags import new_parser, parse, print_heading, run
from played import HEADS, compared, make, pss_mb, scripts

from eh_gym.errors import EHError

SPLITS = {"EH-Cabinet-v0": "dev", "EH-CabinetLocked-v0": "dev", "EH-BFCL-v0": "dev", "EH-AppWorld-v0": "mini"}
MORE = {"EH-AppWorld-v0": {"step_timeout_s": 600.0}}  # 64 worlds on few cores are slow


@contextmanager
def served(env_id: str, sessions: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Serves an environment in a process of its own; yields its id and what EH-Remote-v0 takes."""
    token = secrets.token_urlsafe()
    words = ["-m", "envs", "serve", env_id, "--split", SPLITS[env_id], "--port", "0", "--max-sessions", str(sessions)]
    words += ["--env-args", json.dumps(MORE.get(env_id, {}))]
    environment = {**os.environ, "EH_ENV_TOKEN": token}
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise EHError(f"{env_id} could not be served; its own message is above")
            yield process.pid, {"url": line.split()[-1], "token": token}
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--envs", nargs="+", default=list(SPLITS), choices=list(SPLITS))
    parser.add_argument("--many", type=int, default=64, help='the sessions that play "at once"')
    parser.add_argument("--repeats", type=int, default=5)
    args = parse(parser, envs=["EH-Cabinet-v0"], many=4, repeats=1)
    print_heading("gymnasium", "openenv", "uvicorn", "websockets")
    print("\nMicroseconds of a step, resets included: in this process, over OpenEnv; the server's memory, MB (PSS)")
    print(f"{'environment':<21}{'played':<16}{HEADS}{'server':>8}")
    for env_id in args.envs:
        some, arguments = scripts(env_id, {"split": SPLITS[env_id]}), {"split": SPLITS[env_id], **MORE.get(env_id, {})}
        with served(env_id, args.many) as (pid, remote):
            for name, envs in (("one at a time", 1), (f"{args.many} at once", args.many)):
                both = make(envs, env_id, **arguments), make(envs, "EH-Remote-v0", **remote)
                # The episodes of EH-AppWorld take half a second each.
                count = (4 if envs == 1 else 1) if env_id == "EH-AppWorld-v0" else 20 if envs == 1 else 2
                row = compared(*both, some, count, args.repeats)
                print(f"{env_id:<21}{name:<16}{row}{pss_mb(pid):>8.0f}", flush=True)
    print(f"Load average at the end: {os.getloadavg()[1]:.0f}")


if __name__ == "__main__":
    run(main)
