"""AppWorld: this project's worlds compared with the engine as its README uses it, and with a process per episode.

    python benchmarks/appworld.py > benchmarks/results/appworld-cpu.txt

All players play the mini world's tasks with the same code:

plain     the way of AppWorld's README: `AppWorld(task_id, experiment_name)`, `world.execute` and `world.evaluate` in one
          warm process
cold      a Python process that imports AppWorld, plays one episode and exits
ours      EH-AppWorld-v0 as an agent has it: confined as far as this host allows, and with the verdict
          from the judge's process

The players take turns in every round, because the speed of a machine drifts. A ratio is taken within its round. Figures are
medians with the quartiles in brackets. Plain's seconds are taken inside its process, so that no transport counts against it.
They are taken with `clock_gettime`, because AppWorld freezes the other clocks. No model takes part. The benchmark's own tasks are
not played, because a machine may lack their data.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flags import command, new_parser, parse, run
from played import pss_mb

from eh_gym.worker import Worker, backend_command
from envs.appworld import data
from envs.appworld.env import AppWorldEnv
from envs.backends import BACKENDS, backend_python
from harness.records.versions import cpu_name

PRINT = "print(1)"
LOGIN = """\
passwords = {entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}
email = apis.supervisor.show_profile()["email"]
apis.spotify.login(username=email, password=passwords["spotify"])"""
CALL = "print(apis.spotify.show_song(song_id=1))"
BURN = """\
hashlib, threading = __import__("hashlib"), __import__("threading")
def burn():
    while True:
        hashlib.sha256(bytes(10**6))
for _ in range(60):
    try:
        threading.Thread(target=burn, daemon=True).start()
    except RuntimeError:
        break"""
PARTS = ("fresh", "latencies", "busy", "memory")
FURTHER = 8  # the number of worlds beyond the first, to measure the memory of each
COLD = """
import json, sys
task_id, steps, judged = json.loads(sys.argv[1])
from appworld import AppWorld, update_root
update_root(".")
with AppWorld(task_id=task_id, experiment_name="benchmark") as world:
    for code in steps:
        world.execute(code)
    if judged:
        world.evaluate()
"""


class Plain:
    """Plays with the engine in one warm process."""

    def __init__(self, folder: Path) -> None:
        backend = Path(__file__).parent / "backends" / "appworld_engine.py"
        self._worker = Worker(backend_command(backend_python("appworld"), backend), start_timeout_s=120)
        self._worker.start()
        self._worker.call("root", {"root": str(new_root(folder))}, 120)
        self.pid = self._worker.pid

    def call(self, method: str, **params: str) -> tuple[Any, float]:
        """Makes one call; returns its result and its seconds."""
        return self._worker.call(method, params, 300)

    def end(self) -> None:
        """Ends the process."""
        self._worker.kill()


class Ours:
    """Plays with one EH-AppWorld-v0 environment. All of this process share one host."""

    def __init__(self) -> None:
        self.env = AppWorldEnv(split="mini")
        self.host: Any = self.env._host

    def call(self, method: str, **params: str) -> tuple[Any, float]:
        """Makes one call; returns its result and its seconds.

        Args:
            method: "open" begins a task's episode, and ends the one before. "execute" runs code. "complete" runs the code that
                completes the task, without the verdict; "evaluate" gives the verdict then; "finish" does both.
            params: ``task_id`` or ``code``.
        """
        start = time.perf_counter()
        world: Any = self.env._world
        result: Any = None
        if method == "open":
            self.env.reset(options=params)
        elif method == "execute":
            _, _, *ended, _ = self.env.step(params["code"])
            assert not any(ended)
        elif method == "complete":
            world.execute(params["code"])
        elif method == "evaluate":
            result = bool(world.verdict()["success"])
        else:
            result = self.env.step(params["code"])[1] == 1.0
        return result, time.perf_counter() - start

    def end(self) -> None:
        """Ends the episode."""
        self.env.close()


def play(player: Any, task_id: str) -> float:
    """Plays a whole episode of the reference solution, from reset to verdict; returns its seconds."""
    start = time.perf_counter()
    last = play_to_the_last(player, task_id)
    assert player.call("finish", code=last)[0]
    return time.perf_counter() - start


def play_to_the_last(player: Any, task_id: str) -> str:
    """Plays the reference solution but for its last step, and returns that."""
    *before, last = script(task_id)
    player.call("open", task_id=task_id)
    for code in before:
        player.call("execute", code=code)
    return last


def script(task_id: str) -> list[str]:
    """Returns the task's reference solution."""
    steps = data.reference("mini", task_id)
    assert steps is not None
    return steps


def new_root(folder: Path) -> Path:
    """Makes a separate, writable AppWorld root with the mini world's data and no outputs."""
    root = Path(tempfile.mkdtemp(dir=folder))
    (root / "data").symlink_to(data.roots("mini").judge / "data")
    return root


def cold(folder: Path, task_id: str, steps: Sequence[str], judged: bool) -> float:
    """Runs one process of AppWorld's Python for one episode, in a new root; returns its seconds from start to exit."""
    start = time.perf_counter()
    root = str(new_root(folder))
    subprocess.run(
        [str(backend_python("appworld")), "-B", "-s", "-c", COLD, json.dumps([task_id, steps, judged])],
        cwd=root,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "APPWORLD_ROOT": root, "IPYTHONDIR": root, "PYTHON_DOTENV_DISABLED": "1"},
        check=True,
    )
    return time.perf_counter() - start


@contextmanager
def ended(players: list[Any]) -> Iterator[list[Any]]:
    """Ends the players at the end of its with block."""
    try:
        yield players
    finally:
        for player in players:
            player.end()


def shown(values: Sequence[float], digits: int = 0) -> str:
    """Formats the median and the quartiles."""
    low, middle, high = statistics.quantiles(values if len(values) > 1 else [*values, *values], n=4, method="inclusive")
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def milliseconds(values: Sequence[float]) -> str:
    """Formats seconds as milliseconds, with enough digits."""
    scaled = [1000 * value for value in values]
    return shown(scaled, 0 if statistics.median(scaled) >= 30 else 1)


def compare(title: str, other: str, rows: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> None:
    """Prints a table: for each row what it measures, ours, theirs, and how many times faster ours is."""
    print(f"\n{title}\n{'':<44}{'ours, ms':>22}{f'{other}, ms':>26}{'times faster':>24}")
    for what, ours, theirs in rows:
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        print(f"{what:<44}{milliseconds(ours):>22}{milliseconds(theirs):>26}{shown(ratios, 2) + 'x':>24}", flush=True)


def latencies(folder: Path, tasks: Sequence[str], rounds: int) -> None:
    """Measures reset, steps and verdict, one episode at a time. A first round warms the caches, and does not count."""
    titles = (
        "reset",
        "step, 1 API call, the episode's first of it",
        "step, 1 API call, again",
        "verdict (ours: in a clean world, replayed)",
    )
    samples: dict[str, list[tuple[float, ...]]] = {"ours": [], "plain": []}
    with ended([Ours(), Plain(folder)]) as (ours, plain):
        players = {"ours": ours, "plain": plain}
        for round_ in range(rounds + 1):
            task_id = tasks[round_ % len(tasks)]
            for name in random.Random(round_).sample(sorted(players), len(players)):
                call = players[name].call
                reset = call("open", task_id=task_id)[1]
                call("execute", code=LOGIN)
                first, again = call("execute", code=CALL)[1], call("execute", code=CALL)[1]
                call("complete", code=play_to_the_last(players[name], task_id))
                solved, verdict = call("evaluate")
                assert solved
                samples[name].append((reset, first, again, verdict))
    columns = (zip(*samples[name][1:], strict=True) for name in ("ours", "plain"))
    compare(f"One episode at a time, {rounds} rounds", "plain", list(zip(titles, *columns, strict=True)))


def fresh(folder: Path, tasks: Sequence[str], rounds: int) -> None:
    """Measures an episode that no earlier episode can have touched: ours, and one process per episode."""
    samples: list[tuple[float, ...]] = []
    with ended([Ours()]) as (ours,):
        play(ours, tasks[0])  # now both zygotes are warm
        for round_ in range(rounds):
            task_id = tasks[round_ % len(tasks)]
            start = time.perf_counter()
            ours.call("open", task_id=task_id)
            ours.call("execute", code=PRINT)
            ours.end()
            look = time.perf_counter() - start
            cold_look = cold(folder, task_id, [PRINT], False)
            samples.append((look, cold_look, play(ours, task_id), cold(folder, task_id, script(task_id), True)))
    look_ours, look_cold, whole_ours, whole_cold = zip(*samples, strict=True)
    rows = (
        ("reset, first observation, end", look_ours, look_cold),
        ("reset, reference solution, verdict, end", whole_ours, whole_cold),
    )
    compare(f"A fresh isolated episode, {rounds} rounds", "cold", rows)


def beside_busy_worlds(tasks: Sequence[str], rounds: int) -> None:
    """Measures how much longer a reset takes beside eight worlds whose code has started as many busy threads as it may."""

    def reset(number: int) -> float:
        return float(resetting.call("open", task_id=tasks[number % len(tasks)])[1])

    with ended([Ours() for _ in range(9)]) as (resetting, *busy):
        list(map(reset, range(rounds)))
        alone = list(map(reset, range(rounds)))
        for player in busy:
            player.call("open", task_id=tasks[0])
            player.call("execute", code=BURN)
        left = list(map(reset, range(rounds)))
        running = []
        with ThreadPoolExecutor(len(busy)) as threads:
            steps = [threads.submit(player.call, "execute", code="burn()") for player in busy]
            time.sleep(2)  # until all of them compute
            while not any(step.done() for step in steps):
                running.append(reset(0))
            for step in steps:
                step.result()
    print(f"\nA reset beside eight worlds with busy threads, {rounds} rounds, ms")
    print(f"{'alone':<44}{milliseconds(alone):>22}")
    for title, seconds in (
        ("after the steps that started the threads", left),
        ("during steps that compute in all threads", running),
    ):
        ratio = statistics.median(seconds) / statistics.median(alone)
        print(f"{title:<44}{milliseconds(seconds):>22}{ratio:>25.2f}x", flush=True)


def children(pid: int) -> list[int]:
    """Returns the living children of a process."""
    return [int(pid) for path in Path(f"/proc/{pid}/task").glob("*/children") for pid in path.read_text().split()]


def memory(folder: Path, tasks: Sequence[str]) -> None:
    """Measures the memory of worlds whose solution has run except for its last step."""

    def ours_mb() -> float:
        zygotes = [pid for pid in players[0].host.pids if pid]
        return sum(pss_mb(pid) for zygote in zygotes for pid in (zygote, *children(zygote)))

    with ended([Ours() for _ in range(1 + FURTHER)]) as players:
        play(players[0], tasks[0])  # now both zygotes exist
        play_to_the_last(players[0], tasks[0])
        first = ours_mb()
        for i, player in enumerate(players[1:], 1):
            play_to_the_last(player, tasks[i % len(tasks)])
        further = (ours_mb() - first) / FURTHER
    with ended([Plain(folder) for _ in range(2)]) as plains:
        play_to_the_last(plains[0], tasks[0])
        plain_first = pss_mb(plains[0].pid)
        play_to_the_last(plains[1], tasks[1 % len(tasks)])
        plain_further = sum(pss_mb(plain.pid) for plain in plains) - plain_first
    print(f"\nMemory, PSS in MB, worlds in use; a further one is the mean of {FURTHER}")
    print(f"{'':<44}{'ours':>22}{'plain':>26}")
    print(f"{'the first world, with what it is forked from':<44}{first:>22.0f}{plain_first:>26.0f}")
    print(f"{'a further world':<44}{further:>22.0f}{plain_further:>26.0f}", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="print only these tables")
    options = parse(parser, only=["latencies", "memory"])  # the other tables take minutes
    tasks = data.task_ids("mini")
    print(command())
    print(f"machine     {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    print(f"versions    Python {platform.python_version()}, gymnasium {version('gymnasium')}", end="")
    print(f", appworld {BACKENDS['appworld'].version}; the mini world, {len(tasks)} tasks")
    with tempfile.TemporaryDirectory(prefix="eh-benchmark-", ignore_cleanup_errors=True) as name:
        folder, smoke = Path(name), options.smoke
        tables = {
            "fresh": lambda: fresh(folder, tasks, 1 if smoke else 6),
            "latencies": lambda: latencies(folder, tasks, 1 if smoke else 40),
            "busy": lambda: beside_busy_worlds(tasks, 2 if smoke else 20),
            "memory": lambda: memory(folder, tasks),
        }
        for part in PARTS:
            if part in options.only:
                tables[part]()


if __name__ == "__main__":
    run(main)
