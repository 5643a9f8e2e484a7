"""AppWorld: this project's worlds compared with the engine as its README uses it, its HTTP server, and a process per episode.

    python benchmarks/appworld.py > benchmarks/results/appworld-cpu.txt

All players play the mini world's tasks with the same code:

plain     the way of AppWorld's README: `AppWorld(task_id, experiment_name)`, `world.execute` and `world.evaluate` in one
          warm process
served    the same behind AppWorld's own FastAPI application, over one kept HTTP connection on the loopback. The command `appworld
          serve environment` runs that application on uvicorn, and so does this script: the command needs packages that the pinned
          virtualenv leaves out
cold      a Python process that imports AppWorld, plays one episode and exits
ours      EH-AppWorld-v0 as an agent has it: confined as far as this host allows, and with the verdict
          from the judge's process

The players take turns in every round, because the speed of a machine drifts. A ratio is taken within its round. Figures are
medians with the quartiles in brackets. A goal is shown next to its figure and not asserted. Plain's seconds are taken inside
its process, so that no transport counts against it. They are taken with `clock_gettime`, because AppWorld freezes the other
clocks. No model takes part. The benchmark's own tasks are not played, because a machine may lack their data.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PRINT = "print(1)"
LOGIN = """\
passwords = {entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}
email = apis.supervisor.show_profile()["email"]
token = apis.spotify.login(username=email, password=passwords["spotify"])["access_token"]"""
CALL = "print(apis.spotify.show_song(song_id=1))"
CALLS = f"for _ in range(20):\n    {CALL}"
PAGE = "print(apis.spotify.show_song_library(page_index=0, page_limit=20, access_token=token))"
DOCS = "print(apis.api_docs.show_api_doc(app_name='spotify', api_name='login'))"
SPIN = "x = 0\nfor i in range(5_000_000): x += i * i % 7"
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
STEPS = {  # measure -> its code and its name in the table
    "print": (PRINT, "step, print"),
    "first": (CALL, "step, 1 API call, the episode's first of it"),
    "call": (CALL, "step, 1 API call, again"),
    "calls": (CALLS, "step, 20 API calls (the same)"),
    "page": (PAGE, "step, 1 API call (a page of 20 songs)"),
    "docs": (DOCS, "step, 1 API call (an API's document)"),
}
FURTHER = 8  # the number of worlds beyond the first, to measure the memory of each


# This part runs in AppWorld's virtualenv: the plain engine, behind the project's worker protocol.


def handle(method: str, params: dict[str, Any]) -> Any:
    """Makes one call on the plain engine; returns its result and its seconds."""
    if method == "root":
        sys.dont_write_bytecode = True  # the data belong to the cache, which others also use
        os.environ.update(APPWORLD_ROOT=params["root"], IPYTHONDIR=params["root"])
        import appworld

        appworld.update_root(params["root"])
        return None
    start = time.clock_gettime(time.CLOCK_MONOTONIC)
    result = {"open": _open, "execute": _execute, "evaluate": _evaluate, "close": _close}[method](**params)
    return result, time.clock_gettime(time.CLOCK_MONOTONIC) - start


_world: Any = None


def _open(task_id: str) -> None:
    global _world
    from appworld import AppWorld

    _close()
    _world = AppWorld(task_id=task_id, experiment_name="benchmark")


def _execute(code: str) -> str:
    return str(_world.execute(code))


def _evaluate() -> bool:
    return bool(_world.evaluate().success)


def _close() -> None:
    global _world
    if _world is not None:
        _world.close()  # as at the end of its with block
        _world = None


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
SERVE = """
import sys, uvicorn
from appworld import update_root
update_root(".")
from appworld.serve.environment import app
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


# The players.


class Plain:
    """Plays with the engine in one warm process."""

    def __init__(self, folder: Path) -> None:
        from eh_gym.worker import Worker, backend_command
        from envs.backends import backend_python

        self._worker = Worker(backend_command(backend_python("appworld"), Path(__file__)), start_timeout_s=120)
        self._worker.start()
        self._worker.call("root", {"root": str(new_root(folder))}, 120)
        self.pid = self._worker.pid

    def open(self, task_id: str) -> float:
        """Closes the running episode, if there is one, and opens a task's world; returns the seconds."""
        return self._call("open", task_id=task_id)[1]

    def execute(self, code: str) -> float:
        """Runs code; returns the seconds."""
        return self._call("execute", code=code)[1]

    def evaluate(self) -> tuple[bool, float]:
        """Returns the verdict and its seconds."""
        return self._call("evaluate")

    def end(self) -> None:
        """Ends the processes."""
        self._worker.kill()

    def _call(self, method: str, **params: Any) -> Any:
        return self._worker.call(method, params, 300)


class Served:
    """Plays with the engine behind its own HTTP server."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._process = start_python(folder, SERVE, str(port))
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        deadline = time.perf_counter() + 120
        while True:
            try:
                self._connection.connect()
                break
            except OSError:
                if time.perf_counter() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.1)
        self._task_id = ""

    def open(self, task_id: str) -> float:
        """Closes the running episode, if there is one, and opens a task's world; returns the seconds."""
        start = time.perf_counter()
        if self._task_id:
            self._post("close", task_id=self._task_id)
        self._task_id = task_id
        self._post("initialize", task_id=task_id, experiment_name="benchmark")
        return time.perf_counter() - start

    def execute(self, code: str) -> float:
        """Runs code; returns the seconds."""
        start = time.perf_counter()
        self._post("execute", task_id=self._task_id, code=code)
        return time.perf_counter() - start

    def evaluate(self) -> tuple[bool, float]:
        """Returns the verdict and its seconds."""
        start = time.perf_counter()
        verdict = self._post("evaluate", task_id=self._task_id)
        return bool(verdict["success"]), time.perf_counter() - start

    def end(self) -> None:
        """Ends the processes."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _post(self, path: str, **body: Any) -> Any:
        self._connection.request("POST", f"/{path}", json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered {answer.status}: {content[:500]!r}")
        return json.loads(content)["output"]


class Ours:
    """Plays with one EH-AppWorld-v0 environment. Those of this process with the same settings share one host."""

    def __init__(self, **options: Any) -> None:
        from envs.appworld.env import AppWorldEnv

        self.env = AppWorldEnv(split="mini", **options)
        self.host: Any = self.env._host

    def open(self, task_id: str) -> float:
        """Closes the running episode, if there is one, and opens a task's world; returns the seconds."""
        start = time.perf_counter()
        self.env.reset(options={"task_id": task_id})
        return time.perf_counter() - start

    def execute(self, code: str) -> float:
        """Runs code; returns the seconds."""
        start = time.perf_counter()
        result = self.env.step(code)
        seconds = time.perf_counter() - start
        assert not result[2], result
        assert not result[3], result
        return seconds

    def evaluate(self) -> tuple[bool, float]:
        """Returns the verdict on the running episode, as `step` does when the task is completed, and its seconds."""
        start = time.perf_counter()
        verdict = self.env._world.verdict()  # type: ignore[union-attr]
        return bool(verdict["success"]), time.perf_counter() - start

    def end(self) -> None:
        """Ends the processes."""
        self.env.close()


def play(player: Any, task_id: str, judged: bool = True) -> float:
    """Plays a whole episode of the reference solution, from reset to verdict; returns its seconds."""
    steps = script(task_id)
    start = time.perf_counter()
    player.open(task_id)
    if isinstance(player, Ours):
        for code in steps:
            result = player.env.step(f"```python\n{code}\n```")
        assert result[1] == 1.0, result
    else:
        for code in steps:
            player.execute(code)
        assert player.evaluate()[0]
    return time.perf_counter() - start


# What the players need.


def script(task_id: str) -> list[str]:
    """Returns the task's reference solution."""
    from envs.appworld import data

    steps = data.reference("mini", task_id)
    assert steps is not None
    return steps


def new_root(folder: Path) -> Path:
    """Makes a separate, writable AppWorld root with the mini world's data and no outputs."""
    from envs.appworld import data

    root = Path(tempfile.mkdtemp(dir=folder))
    (root / "data").symlink_to(data.roots("mini").judge / "data")
    return root


def start_python(folder: Path, code: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a Python of AppWorld's virtualenv in a new root."""
    from envs.backends import backend_python

    root = new_root(folder)
    return subprocess.Popen(
        [str(backend_python("appworld")), "-B", "-s", "-c", code, *arguments],
        cwd=root,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "APPWORLD_ROOT": str(root), "IPYTHONDIR": str(root), "PYTHON_DOTENV_DISABLED": "1"},
    )


def cold(folder: Path, task_id: str, steps: Sequence[str], judged: bool) -> float:
    """Runs one process for one episode; returns its seconds from start to exit."""
    start = time.perf_counter()
    process = start_python(folder, COLD, json.dumps([task_id, steps, judged]))
    assert process.wait() == 0
    return time.perf_counter() - start


def memory_mb(pid: int | None, field: str = "Pss") -> float:
    """Returns the memory of a process in MB: its proportional set size (shared pages count by their share), or Rss."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(field)


def children(pid: int | None) -> list[int]:
    """Returns the living children of a process."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def files_in(folders: Sequence[Path]) -> int:
    """Returns the number of files in folders."""
    return sum(len(files) for folder in folders for _, _, files in os.walk(folder))


# The tables.

Samples = dict[str, dict[str, list[float]]]  # measure -> player -> seconds of each round


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the lower quartile, the median and the upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def shown(values: Sequence[float], digits: int = 0) -> str:
    """Formats the median and the quartiles."""
    low, middle, high = quartiles(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def milliseconds(values: Sequence[float]) -> str:
    """Formats seconds as milliseconds, with enough digits."""
    scaled = [1000 * value for value in values]
    return shown(scaled, 0 if statistics.median(scaled) >= 30 else 1)


def compare(title: str, ours: Sequence[float], theirs: Sequence[float], goal: str = "") -> None:
    """Prints one line: ours, theirs, and how many times faster ours is."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    print(
        f"{title:<44}{milliseconds(ours):>22}{milliseconds(theirs):>26}{shown(ratios, 2) + 'x':>24}  {goal}", flush=True
    )


def heading(title: str, ours: str = "ours, ms", theirs: str = "plain, ms") -> None:
    """Prints a table's title and columns."""
    print(f"\n{title}\n{'':<44}{ours:>22}{theirs:>26}{'times faster':>24}  goal", flush=True)


def one_round(player: Any, task_id: str, row: Callable[[str, float], None], steps: Sequence[str]) -> None:
    """Takes every measure of one player once. Of the steps it takes only those named."""
    row("reset", player.open(task_id))
    player.execute(LOGIN)
    for name in steps:
        row(name, player.execute(STEPS[name][0]))
    player.open(task_id)
    *before, last = script(task_id)
    for code in before:
        player.execute(code)
    if isinstance(player, Ours):
        player.env._world.execute(last)  # type: ignore[union-attr] - env.step would also ask for the verdict
    else:
        player.execute(last)
    verdict, seconds = player.evaluate()
    assert verdict
    row("evaluate", seconds)


def in_rounds(
    players: dict[str, Any], tasks: Sequence[str], rounds: int, steps: Sequence[str] = tuple(STEPS)
) -> Samples:
    """Plays all measures in rounds, each with another order of the players. The first round warms the caches."""
    samples: Samples = {}
    for round_ in range(-1, rounds):
        task_id = tasks[round_ % len(tasks)]
        for name in random.Random(round_).sample(sorted(players), len(players)):

            def row(measure: str, seconds: float, name: str = name, round_: int = round_) -> None:
                if round_ >= 0:
                    samples.setdefault(measure, {}).setdefault(name, []).append(seconds)

            one_round(players[name], task_id, row, steps)
    return samples


def latencies(folder: Path, tasks: Sequence[str], rounds: int) -> None:
    """Measures reset, steps and verdict, one episode at a time."""
    with ended([Ours(), Plain(folder), Served(folder)]) as (ours, plain, served):
        samples = in_rounds({"ours": ours, "plain": plain, "served": served}, tasks, rounds)
    heading(f"One episode at a time, {rounds} rounds")
    compare("reset", samples["reset"]["ours"], samples["reset"]["plain"], ">= 2x")
    for name, (_, title) in STEPS.items():
        compare(title, samples[name]["ours"], samples[name]["plain"], ">= 1.4x" if name in ("first", "call") else "")
    compare("verdict (ours: in a clean world, replayed)", samples["evaluate"]["ours"], samples["evaluate"]["plain"])
    heading("The same against AppWorld's own HTTP server", theirs="served, ms")
    compare("reset", samples["reset"]["ours"], samples["reset"]["served"])
    for name, (_, title) in STEPS.items():
        compare(title, samples[name]["ours"], samples[name]["served"])
    compare("verdict", samples["evaluate"]["ours"], samples["evaluate"]["served"])


def fresh(folder: Path, tasks: Sequence[str], rounds: int) -> None:
    """Measures an episode that no earlier episode can have touched: ours, and one process per episode."""
    samples: Samples = {"look": {}, "whole": {}}
    with ended([Ours()]) as (ours,):
        ours.open(tasks[0])
        play(ours, tasks[0])  # now both zygotes are warm
        ours.end()
        for round_ in range(rounds):
            task_id = tasks[round_ % len(tasks)]
            start = time.perf_counter()
            ours.open(task_id)
            ours.execute(PRINT)
            ours.end()
            samples["look"].setdefault("ours", []).append(time.perf_counter() - start)
            samples["look"].setdefault("cold", []).append(cold(folder, task_id, [PRINT], False))
            samples["whole"].setdefault("ours", []).append(play(ours, task_id))
            samples["whole"].setdefault("cold", []).append(cold(folder, task_id, script(task_id), True))
    heading(f"A fresh isolated episode, {rounds} rounds", theirs="cold, ms")
    compare("reset, first observation, end", samples["look"]["ours"], samples["look"]["cold"], ">= 20x")
    compare("reset, reference solution, verdict, end", samples["whole"]["ours"], samples["whole"]["cold"])


def beside_busy_worlds(tasks: Sequence[str], rounds: int) -> None:
    """Measures how much longer a reset takes beside eight worlds whose code has started as many busy threads as it may."""

    def resets() -> list[float]:
        return [resetting.open(tasks[i % len(tasks)]) for i in range(rounds)]

    with ended([Ours() for _ in range(9)]) as (resetting, *busy):
        resets()
        alone = resets()
        for player in busy:
            player.open(tasks[0])
            player.execute(BURN)
        left = resets()
        running = []
        with ThreadPoolExecutor(len(busy)) as threads:
            steps = [threads.submit(player.execute, "burn()") for player in busy]
            time.sleep(2)  # until all of them compute
            while not any(step.done() for step in steps):
                running.append(resetting.open(tasks[0]))
            for step in steps:
                step.result()
    print(f"\nA reset beside eight worlds with busy threads, {rounds} rounds, ms")
    print(f"{'alone':<44}{milliseconds(alone):>22}")
    for title, seconds, goal in (
        ("after the steps that started the threads", left, "<= 2x"),
        ("during steps that compute in all threads", running, ""),
    ):
        ratio = statistics.median(seconds) / statistics.median(alone)
        print(f"{title:<44}{milliseconds(seconds):>22}{ratio:>25.2f}x{'':>24}  {goal}", flush=True)


def throughput(folder: Path, tasks: Sequence[str], episodes: int, rounds: int) -> None:
    """Measures whole episodes with one worker and with four."""
    workers = 4
    jobs = [tasks[i % len(tasks)] for i in range(episodes)]

    def run(players: Sequence[Any]) -> float:
        """Returns the episodes per second. A free player takes the next job, as slots do."""
        queue = iter(jobs)

        def work(player: Any) -> None:
            for task_id in queue:  # taking the next is one C call, so the threads share it safely
                play(player, task_id)

        start = time.perf_counter()
        with ThreadPoolExecutor(len(players)) as threads:
            for done in [threads.submit(work, player) for player in players]:
                done.result()
        return len(jobs) / (time.perf_counter() - start)

    def spin(processes: int) -> float:
        start = time.perf_counter()
        running = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
        for process in running:
            process.wait()
        return processes / (time.perf_counter() - start)

    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        players: dict[str, list[Any]] = {
            "ours": stack.enter_context(ended([Ours() for _ in range(workers)])),
            "plain": stack.enter_context(ended([Plain(folder) for _ in range(workers)])),
        }
        for named in players.values():
            with ThreadPoolExecutor(workers) as threads:
                list(threads.map(lambda player: play(player, jobs[0]), named))
        for round_ in range(rounds):
            for name in random.Random(round_).sample(sorted(players), 2):
                for count in (1, workers):
                    rates.setdefault(f"{name}{count}", []).append(run(players[name][:count]))
            for count in (1, workers):
                rates.setdefault(f"spin{count}", []).append(spin(count))
    print(f"\nWhole episodes of reference solutions, {episodes} a run, {rounds} rounds")
    print(f"{'':<44}{'1 worker':>22}{f'{workers} workers':>26}{'speed-up':>24}  goal")
    for name, title, digits in (
        ("ours", "ours, episodes/s", 2),
        ("plain", "plain, a process each, episodes/s", 2),
        ("spin", "this machine: loops/s of plain Python", 2),
    ):
        one, many = rates[f"{name}1"], rates[f"{name}{workers}"]
        ups = [b / a for a, b in zip(one, many, strict=True)]
        goal = ">= 3.3x" if name == "ours" else ""
        print(f"{title:<44}{shown(one, digits):>22}{shown(many, digits):>26}{shown(ups, 2) + 'x':>24}  {goal}")
    for count in (1, workers):
        ratios = [a / b for a, b in zip(rates[f"ours{count}"], rates[f"plain{count}"], strict=True)]
        print(f"{f'ours over plain, {count} at a time':<44}{shown(ratios, 2) + 'x':>22}", flush=True)


def footprint(folder: Path, tasks: Sequence[str]) -> None:
    """Measures the memory of worlds whose solution has run except for its last step."""

    def fill(player: Any, task_id: str) -> None:
        player.open(task_id)
        for code in script(task_id)[:-1]:
            player.execute(code)

    def ours_mb() -> tuple[float, float]:
        zygotes = [pid for pid in players[0].host.pids if pid]
        worlds = [child for pid in zygotes for child in children(pid)]
        return sum(memory_mb(pid) for pid in zygotes + worlds), memory_mb(zygotes[0], "Rss")

    with ended([Ours() for _ in range(1 + FURTHER)]) as players:
        play(players[0], tasks[0])  # now both zygotes exist
        fill(players[0], tasks[0])
        first, resident = ours_mb()
        for i, player in enumerate(players[1:], 1):
            fill(player, tasks[i % len(tasks)])
        further = (ours_mb()[0] - first) / FURTHER
    with ended([Plain(folder) for _ in range(2)]) as plains:
        fill(plains[0], tasks[0])
        plain_first = memory_mb(plains[0].pid)
        fill(plains[1], tasks[1 % len(tasks)])
        plain_further = memory_mb(plains[0].pid) + memory_mb(plains[1].pid) - plain_first
    print(f"\nMemory, PSS in MB, worlds in use; a further one is the mean of {FURTHER}")
    print(f"{'':<44}{'ours':>22}{'plain':>26}{'':>24}  goal")
    print(f"{'the first world, with what it is forked from':<44}{first:>22.0f}{plain_first:>26.0f}")
    print(f"{'a further world':<44}{further:>22.0f}{plain_further:>26.0f}{'':>24}  <= 70 MB")
    print(f"(the zygote of the worlds: RSS {resident:.0f})", flush=True)


def endurance(folder: Path, tasks: Sequence[str], episodes: int) -> None:
    """Measures whether anything grows over many episodes."""
    from envs.appworld import data

    roots = data.roots("mini")
    marks = sorted({1, episodes // 10, episodes // 2, episodes})
    with ended([Ours() for _ in range(4)]) as players, ended([Plain(folder)]) as (plain,):
        print(f"\nOver {episodes:,} whole episodes in 4 slots, MB as PSS (RSS); goal: flat")
        print(
            f"{'episodes':>10}{'zygote':>16}{'judge':>16}{'driver':>16}{'processes':>12}{'files left':>12}{'plain':>16}"
        )
        files: int | None = None
        done = 0
        for mark in marks:
            with ThreadPoolExecutor(4) as threads:
                played = [
                    threads.submit(_run, player, [tasks[i % len(tasks)] for i in range(done, mark) if i % 4 == slot])
                    for slot, player in enumerate(players)
                ]
            for one in played:
                one.result()  # raises what a thread raised
            for i in range(done // 10, mark // 10):  # plain is slower, and its leak shows earlier
                plain.open(tasks[i % len(tasks)])
            done = mark
            pids = [*players[0].host.pids, os.getpid(), plain.pid]
            cells = [f"{memory_mb(pid):.0f} ({memory_mb(pid, 'Rss'):.0f})" for pid in pids]
            now = files_in([roots.judge, roots.agent, *Path(tempfile.gettempdir()).glob("eh-appworld-*")])
            files = now if files is None else files
            processes = sum(len(children(pid)) for pid in players[0].host.pids)
            print(
                f"{mark:>10}", *(f"{cell:>15}" for cell in cells[:3]), f"{processes:>11}{now - files:>12}{cells[3]:>16}"
            )
        print("(plain: a tenth as many resets in one process, nothing else)", flush=True)


def _run(player: Any, tasks: Sequence[str]) -> None:
    for task_id in tasks:
        play(player, task_id)


@contextmanager
def ended(players: list[Any]) -> Iterator[list[Any]]:
    """Ends the players at the end of its with block."""
    try:
        yield players
    finally:
        for player in players:
            player.end()


def main() -> None:
    """Prints the tables."""
    from importlib.metadata import version

    from flags import (  # not above: AppWorld's process also loads this file, and it finds no other modules
        command,
        new_parser,
        parse,
    )

    from envs.appworld import data
    from envs.backends import BACKENDS
    from harness.run.versions import cpu_name

    parts = ("fresh", "latencies", "busy", "throughput", "memory", "endurance")
    parser = new_parser(__doc__)
    parser.add_argument("--only", choices=parts, nargs="+", help="print only these tables")
    options = parse(parser, only=["latencies", "memory"])  # the other tables take minutes
    tasks, chosen = data.task_ids("mini"), options.only or parts

    print(command())
    print(f"machine     {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    print(f"versions    Python {platform.python_version()}, gymnasium {version('gymnasium')}", end="")
    print(f", appworld {BACKENDS['appworld'].version}; the mini world, {len(tasks)} tasks")
    folder = Path(tempfile.mkdtemp(prefix="eh-benchmark-"))
    try:
        if "fresh" in chosen:
            fresh(folder, tasks, 1 if options.smoke else 6)
        if "latencies" in chosen:
            latencies(folder, tasks, 1 if options.smoke else 40)
        if "busy" in chosen:
            beside_busy_worlds(tasks, 2 if options.smoke else 20)
        if "throughput" in chosen:
            throughput(folder, tasks, 32, 3)
        if "memory" in chosen:
            footprint(folder, tasks)
        if "endurance" in chosen:
            endurance(folder, tasks, 1000)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    from flags import run

    run(main)
