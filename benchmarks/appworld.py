"""AppWorld: this project's worlds compared with the engine as its README uses it.

    python benchmarks/appworld.py > benchmarks/results/appworld-cpu.txt

All players play the mini world's tasks with the same code:

plain     `AppWorld(task_id, experiment_name)`, `world.execute` and `world.evaluate` in one warm process
ours      EH-AppWorld-v0 as an agent has it, confined as far as this host allows

The players take turns in every round, and a ratio is taken within its round. Figures are medians with the quartiles in
brackets. All seconds are taken inside the players' processes; plain's with `clock_gettime`, because AppWorld freezes
the other clocks. The benchmark's own tasks are not played, because a machine may lack their data.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flags import new_parser, parse, print_heading, run
from played import pss_mb

from eh_gym.worker import Worker, backend_command
from envs.appworld import data
from envs.backends import backend_python

PRINT = "print(1)"
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
BUSY = {
    "threads": "burn()",
    "cheap calls": "while True:\n    try:\n        requester.client.get('/spotify/songs/1')\n    except RuntimeError:\n"
    "        pass",  # after 1,000, calls are refused
    "heavy calls": "form = '&a=' * 80_000\nwhile True: requester.client.post('/spotify/auth/token', content=form, "
    "headers={'content-type': 'application/x-www-form-urlencoded'})",
    "memory": "while True: bytearray(100 << 20)[::4096]",
}
TENTH = "time = __import__('time')\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
PARTS = ("latencies", "busy", "memory")
WORLDS = 16  # at once, to measure the memory of each
WRITING_S = 0.5  # less than a model takes for its first message
HERE = Path(__file__).resolve().parent


class Player:
    """A process that plays: the engine, or EH-AppWorld-v0."""

    def __init__(self, python: Path, backend: str, root: Path) -> None:
        self._worker = Worker(backend_command(python, HERE / "backends" / backend), start_timeout_s=120)
        self._worker.start()
        self._worker.call("root", {"root": str(root)}, 120)

    @property
    def pid(self) -> int:
        """The player's process id."""
        assert self._worker.pid is not None
        return self._worker.pid

    def call(self, method: str, **params: Any) -> Any:
        """Makes one call: see benchmarks/backends. Returns its result and its seconds."""
        return self._worker.call(method, params, 600)

    def close(self) -> None:
        """Ends the process."""
        self._worker.close(60)


def plain(folder: Path) -> Player:
    """The engine in one warm process."""
    root = Path(tempfile.mkdtemp(dir=folder))  # writable, and without outputs
    (root / "data").symlink_to(data.root_of("mini") / "data")
    return Player(backend_python("appworld"), "appworld_engine.py", root)


def ours() -> Player:
    """EH-AppWorld-v0."""
    return Player(Path(sys.executable), "appworld_env.py", HERE.parent)


def play_to_the_last(player: Player, task_id: str, **slot: int) -> str:
    """Plays the reference solution but for its last step, and returns that."""
    steps = data.reference("mini", task_id)
    assert steps is not None
    *before, last = steps
    player.call("open", task_id=task_id, **slot)
    for code in before:
        player.call("execute", code=code, **slot)
    return last


@contextmanager
def ended(players: list[Player]) -> Iterator[list[Player]]:
    """Ends the players at the end of its with block."""
    try:
        yield players
    finally:
        for player in players:
            player.close()


def shown(values: Sequence[float], digits: int = 0) -> str:
    """Formats the median and the quartiles."""
    low, middle, high = statistics.quantiles(values if len(values) > 1 else [*values, *values], n=4, method="inclusive")
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def milliseconds(values: Sequence[float]) -> str:
    """Formats seconds as milliseconds, with enough digits."""
    scaled = [1000 * value for value in values]
    return shown(scaled, 0 if statistics.median(scaled) >= 30 else 1)


def table(title: str, columns: dict[str, Sequence[Sequence[float]]], rows: Sequence[str]) -> None:
    """Prints the seconds of each row by player, ours first, and ours as a multiple of each other's, round by round."""
    names = list(columns)
    heads = [f"{name}, ms" for name in names] + [f"ours / {name}" for name in names[1:]]
    print(f"\n{title}\n{'':<42}{''.join(f'{head:>24}' for head in heads)}")
    for what, *seconds in zip(rows, *columns.values(), strict=True):
        ratios = [[a / b for a, b in zip(seconds[0], other, strict=True)] for other in seconds[1:]]
        cells = [milliseconds(values) for values in seconds] + [shown(ratio, 2) for ratio in ratios]
        print(f"{what:<42}{''.join(f'{cell:>24}' for cell in cells)}", flush=True)


def latencies(folder: Path, tasks: Sequence[str], rounds: int) -> None:
    """Measures reset, steps and verdict, one episode at a time. A first round warms the caches, and does not count.

    Each step makes an API call. A model writes its message between the reset and the first one.
    """
    rows = (
        "reset",
        f"the first step, {WRITING_S:g} s later",
        "reset and that step",
        "the same step again",
        "the first step at once after a reset",
        "reset and that step",
        "the last step with its verdict (plain: evaluating alone)",
    )

    def measured(player: Player, task_id: str) -> tuple[float, ...]:
        reset = player.call("open", task_id=task_id)[1]
        time.sleep(WRITING_S)
        first, again = (player.call("execute", code=CALL)[1] for _ in range(2))
        soon = player.call("open", task_id=task_id)[1]
        at_once = player.call("execute", code=CALL)[1]
        last = play_to_the_last(player, task_id)
        if player is players["plain"]:
            player.call("execute", code=last)
        solved, verdict = player.call("evaluate") if player is players["plain"] else player.call("finish", code=last)
        assert solved
        return reset, first, reset + first, again, at_once, soon + at_once, verdict

    players = {"ours": ours(), "plain": plain(folder)}
    samples: dict[str, list[tuple[float, ...]]] = {name: [] for name in players}
    with ended(list(players.values())):
        for number in range(rounds + 1):
            for name in random.Random(number).sample(sorted(players), len(players)):
                samples[name].append(measured(players[name], tasks[number % len(tasks)]))
    columns = {name: list(zip(*measurements[1:], strict=True)) for name, measurements in samples.items()}
    table(f"One episode at a time, {rounds} rounds", columns, rows)


def beside_busy_worlds(tasks: Sequence[str], counts: Sequence[int], rounds: int) -> None:
    """Measures how much longer a reset and a step that computes for 0.1 s take beside worlds that never rest."""
    print(f"\nBeside busy worlds, ms, {rounds} rounds")
    print(f"{'':<34}{'a reset':>20}{'beside / alone':>16}{'a step of 0.1 s':>20}{'beside / alone':>16}")
    for count, (kind, code) in itertools.product(counts, BUSY.items()):
        with ended([ours()]) as (player,):

            def honest(player: Player = player) -> list[tuple[float, float]]:
                pairs = []
                for number in range(rounds):
                    opened = player.call("open", task_id=tasks[number % len(tasks)])[1]
                    pairs.append((opened, player.call("execute", code=TENTH)[1]))
                return pairs

            honest()  # warms the caches
            alone, slots = honest(), list(range(1, count + 1))
            for slot in slots:
                player.call("open", task_id=tasks[0], slot=slot)
                player.call("execute", code=BURN if kind == "threads" else PRINT, slot=slot, may_end=True)
            player.call("burn", code=code, slots=slots)
            time.sleep(20)  # until all have computed for long
            beside = honest()
            assert player.call("burning") == count
        columns = ""
        for before, now in zip(zip(*alone, strict=True), zip(*beside, strict=True), strict=True):
            columns += f"{milliseconds(now):>20}{statistics.median(now) / statistics.median(before):>15.2f}x"
        print(f"{f'{count} worlds: {kind}':<34}{columns}", flush=True)


def children(pid: int) -> list[int]:
    """Returns the living children of a process."""
    return [int(pid) for path in Path(f"/proc/{pid}/task").glob("*/children") for pid in path.read_text().split()]


def memory(folder: Path, tasks: Sequence[str]) -> None:
    """Measures the memory of worlds whose solution has run except for its last step."""

    def worlds(player: Player) -> tuple[float, float, float]:
        """MB: the first world with what it is forked from, a further one, and all."""
        assert player.call("finish", code=play_to_the_last(player, tasks[0]))[0]  # now all zygotes exist
        play_to_the_last(player, tasks[0], slot=0)
        megabytes = []
        for slot in range(WORLDS):
            play_to_the_last(player, tasks[slot % len(tasks)], slot=slot)
            if slot in (0, WORLDS - 1):
                zygotes = player.call("pids")
                megabytes.append(sum(pss_mb(pid) for zygote in zygotes for pid in (zygote, *children(zygote))))
        return megabytes[0], (megabytes[1] - megabytes[0]) / (WORLDS - 1), megabytes[1]

    with ended([ours()]) as (player,):
        rows = {"ours": worlds(player)}
    with ended([plain(folder), plain(folder)]) as plains:
        play_to_the_last(plains[0], tasks[0])
        first = pss_mb(plains[0].pid)
        play_to_the_last(plains[1], tasks[1 % len(tasks)])
        further = sum(pss_mb(player.pid) for player in plains) - first
    rows["plain"] = (first, further, first + (WORLDS - 1) * further)
    titles = ("the first world, with what it is forked from", "a further world", f"all {WORLDS} worlds")
    print(f"\nMemory, PSS in MB, {WORLDS} worlds in use (plain: computed from 2)")
    heads = [f"{name:>12}" for name in rows] + [f"{'ours / ' + name:>16}" for name in rows if name != "ours"]
    print(f"{'':<46}{''.join(heads)}")
    for title, *values in zip(titles, *rows.values(), strict=True):
        ratios = "".join(f"{values[0] / value:>16.2f}" for value in values[1:])
        print(f"{title:<46}" + "".join(f"{value:>12.0f}" for value in values) + ratios, flush=True)


def main() -> None:
    """Prints the tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="print only these tables")
    parser.add_argument("--rounds", type=int, default=40, help="of the latencies")
    options = parse(parser, only=["latencies", "memory"], rounds=1)  # the other tables take minutes
    tasks = data.task_ids("mini")
    print_heading("gymnasium", appworld=f"{data.BACKEND.version}; the mini world, {len(tasks)} tasks")
    with tempfile.TemporaryDirectory(prefix="eh-benchmark-", ignore_cleanup_errors=True) as name:
        folder, smoke = Path(name), options.smoke
        if "latencies" in options.only:
            latencies(folder, tasks, options.rounds)
        if "busy" in options.only:
            beside_busy_worlds(tasks, (2,) if smoke else (8, 64), 2 if smoke else 20)
        if "memory" in options.only:
            memory(folder, tasks)


if __name__ == "__main__":
    run(main)
