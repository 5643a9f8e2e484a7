"""Hosts, which fork worlds and hold them.

env.py decides what the agent sees of a world.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError, EHError, WorkerDied, WorkerError, WorkerProtocolError, WorkerTimeout
from envs.appworld import data
from envs.appworld.backend import wire
from envs.appworld.data import Roots
from envs.appworld.forks import Fork, Unread, Zygote
from envs.appworld.record import Record

__all__ = ["Host", "Settings", "World", "close_hosts", "shared_host"]

_OPEN_TIMEOUT_S = 120.0
_CPU_STEPS = 100  # the number of full steps for which a world's processor time is enough
_JUDGE_MEMORY_BYTES = 512 << 20  # for the evaluation, in addition to what the world had
_JUDGE_FILE_BYTES = 256 << 20  # the evaluation reads the state from files, one for each app
_JUDGE_OPEN_FILES = 1024
_OPEN_CPU_S = 60  # opening a world takes a tenth of a second


@dataclass(frozen=True)
class Settings:
    """The limits of a world.

    Attributes:
        step_timeout_s: The seconds that one action's code may run, a whole number. The engine then reports a timeout, and the
            episode goes on. Code that cannot be interrupted is killed 5 s later (a quarter of the time, if that is less), and
            its episode is over. With the verdict a step takes at most twice this time.
        max_api_calls: The number of API calls that one action may make. Further calls raise.
        max_observation_chars: Longer outputs lose their middle.
        memory_mb: The additional address space that a world may take, in MiB. A judge may take 512 MiB more.
        confined: Whether to confine worlds as far as the host allows. If not, the agent's code can do what the user can.
    """

    step_timeout_s: float = 30.0
    max_api_calls: int = 1000
    max_observation_chars: int = 20_000
    memory_mb: int = 1024
    confined: bool = True

    def __post_init__(self) -> None:
        least = {"step_timeout_s": 1, "max_api_calls": 1, "memory_mb": 1, "max_observation_chars": 200}
        for name, bound in least.items():
            # The engine's alarm takes whole seconds, which may be written as 30.0.
            value, kinds = getattr(self, name), (int, float) if name.endswith("_s") else int
            if isinstance(value, bool) or not isinstance(value, kinds) or not (value >= bound and value % 1 == 0):
                raise ConfigError(f"{name} must be a whole number >= {bound}, without quotes, got {value!r}")

    @property
    def cpu_s(self) -> int:
        """The seconds of processor time that a world may use in the whole episode, all threads together."""
        return math.ceil(_CPU_STEPS * self.step_timeout_s)


class World:
    """One episode's world. The agent's code runs in a process of its own; `about` describes the task."""

    def __init__(self, host: Host, task_id: str, fork: Fork, zygote: int | None, about: Mapping[str, Any]) -> None:
        self.about = about
        self._host, self._task_id, self._fork, self._zygote = host, task_id, fork, zygote
        self._record = Record()
        self._new = True  # whether it has had no code yet
        self._step_s = 0.0  # the time of the last step
        self._failed = False  # whether another world or a judge could not be made

    @property
    def host_failed(self) -> bool:
        """Whether the host, and not the agent's code, caused the error of ``execute`` or ``verdict``."""
        return self._failed or not self._host.alive or self._host.pids[0] != self._zygote

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The API calls of all steps, in their order."""
        return self._record.calls

    def execute(self, code: str) -> Mapping[str, Any]:
        """Runs code. Returns ``output``, ``malformed``, ``completed`` (it completed the task) and ``api_calls`` (a number).

        Raises:
            WorkerError: The world is lost, because of the code unless ``host_failed``.
        """
        new, self._new = self._new, False
        try:
            return self._execute(code)
        except Unread as error:
            if not new:
                raise WorkerDied(str(error)) from error
        # The process ended before it read any code. A new one takes its place, and the agent does not notice.
        self._fork.end()
        try:
            self._fork, self._zygote, _ = self._host.fork_world(self._task_id)
        except WorkerError:
            self._failed = True
            raise
        return self._execute(code)

    def _execute(self, code: str) -> Mapping[str, Any]:
        settings, began = self._host.settings, time.monotonic()
        try:
            answer, calls = self._fork.ask(
                wire.encode({"code": code, "room_bytes": self._record.room_bytes}),
                timeout_s=settings.step_timeout_s + _grace_s(settings.step_timeout_s),
                max_bytes=12 * settings.max_observation_chars + 4096,  # a character takes up to 12 bytes in JSON
                max_more_bytes=self._record.longest_bytes,
            )
            _check(answer, settings)
        except ValueError as error:
            self._fork.end()
            raise WorkerProtocolError(f"the world's answer is malformed: {error}") from error
        finally:
            self._step_s = time.monotonic() - began
        self._record.add(calls)
        return answer

    def verdict(self) -> Mapping[str, Any]:
        """The official evaluation, with ``success``, ``passed``, ``total`` and ``failures``.

        A verdict that fails is tried again, unless the judge has computed until its deadline. If it fails again, another judge
        evaluates the task without any calls. If that works, the calls are to blame: they take more memory, time or disk than a
        judge may use. All three and the last step take at most twice ``step_timeout_s``, not counting the start of the judges.

        Raises:
            WorkerError: There is no verdict, because of the code's API calls unless ``host_failed``.
        """
        self._fork.end()  # its threads would slow the judge down
        judge, whole_s = self._host.judge, self._host.settings.step_timeout_s
        began, first_s, later_s = time.monotonic(), max(1.5 * whole_s - self._step_s, whole_s / 4), whole_s / 4
        try:
            return judge(self._task_id, self._record.steps, first_s)
        except _Computing as error:
            raise _unrepeated(error) from error
        except WorkerError:
            left_s = max(first_s - (time.monotonic() - began), later_s)
        try:
            return judge(self._task_id, self._record.steps, left_s)
        except WorkerError as error:
            self._failed = not isinstance(error, _Computing) and not self._host.can_judge(self._task_id, later_s)
            raise _unrepeated(error) from error

    def close(self) -> None:
        """Ends the world."""
        self._fork.end()


class Host:
    """Makes and holds worlds on this machine. Thread-safe.

    One zygote forks the processes of the agents' code, another one those of the judges.
    """

    def __init__(self, python: Path, roots: Roots, settings: Settings = Settings()) -> None:
        self.settings = settings
        self._roots = roots
        self._worlds = Zygote(python, roots.agent, "world", settings.confined)
        self._judges = Zygote(python, roots.judge, "judge", False)

    @property
    def alive(self) -> bool:
        """Whether the process that forks the worlds is running."""
        return self._worlds.alive

    @property
    def pids(self) -> tuple[int | None, int | None]:
        """The process ids of the worlds' and the judges' zygotes; None before their start."""
        return self._worlds.pid, self._judges.pid

    def open(self, task_id: str) -> World:
        """A fresh world of a task.

        Raises:
            WorkerError: No world could be made.
        """
        if self._judges.pid is None:
            threading.Thread(target=self._start_judges, daemon=True).start()  # in parallel with the worlds' zygote
        return World(self, task_id, *self.fork_world(task_id))

    def fork_world(self, task_id: str) -> tuple[Fork, int | None, Mapping[str, Any]]:
        """A process with a fresh world, the process id of its zygote, and what is known about the task.

        Raises:
            WorkerError: Two attempts have failed.
        """
        try:
            return self._fork_world(task_id)
        except WorkerError:  # such as a zygote that was killed meanwhile; no code has run yet
            return self._fork_world(task_id)

    def judge(self, task_id: str, steps: Sequence[bytes], timeout_s: float) -> Mapping[str, Any]:
        """The official verdict on the state that these calls (of a Record) leave. `timeout_s` begins once there is a judge.

        Raises:
            WorkerError: The judge could not be made, or failed.
        """
        settings = self.settings
        limits = {
            "memory_bytes": settings.memory_mb * 2**20 + _JUDGE_MEMORY_BYTES,
            "cpu_s": math.ceil(2 * settings.step_timeout_s) + _OPEN_CPU_S,
            "file_bytes": _JUDGE_FILE_BYTES,
            "open_files": _JUDGE_OPEN_FILES,
        }
        fork = self._judges.fork({"task_id": task_id, "max_api_calls": settings.max_api_calls, "limits": limits})
        try:
            fork.ask(timeout_s=_OPEN_TIMEOUT_S)
            answer, _ = fork.ask(wire.encode({"steps": len(steps)}), *steps, timeout_s=timeout_s)
            return dict(answer["verdict"])
        except WorkerTimeout as error:
            if fork.cpu_s >= timeout_s / 2:  # ask() has ended it
                raise _Computing(str(error)) from error
            raise
        finally:
            fork.end()

    def can_judge(self, task_id: str, timeout_s: float) -> bool:
        """Whether a judge gives a verdict on the task as it is, without any calls."""
        try:
            self.judge(task_id, (), timeout_s)
        except WorkerError:
            return False
        return True

    def close(self) -> None:
        """Ends everything."""
        self._worlds.close()
        self._judges.close()

    def _start_judges(self) -> None:
        with contextlib.suppress(EHError):  # the first verdict tries again
            self._judges.start()

    def _fork_world(self, task_id: str) -> tuple[Fork, int | None, Mapping[str, Any]]:
        settings = self.settings
        fork = self._worlds.fork(
            {
                "task_id": task_id,
                "timeout_s": settings.step_timeout_s,
                "max_api_calls": settings.max_api_calls,
                "max_output_chars": settings.max_observation_chars,
                "limits": {"memory_bytes": settings.memory_mb * 2**20, "cpu_s": settings.cpu_s},
            }
        )
        zygote, _ = self.pids
        answer, _ = fork.ask(timeout_s=_OPEN_TIMEOUT_S)
        return fork, zygote, answer["ready"] | {"difficulty": data.difficulty(self._roots.judge, task_id)}


_hosts: dict[tuple[Any, ...], Host] = {}
_hosts_lock = threading.Lock()


def shared_host(python: Path, roots: Roots, settings: Settings) -> Host:
    """The host that all environments of this process with the same data and settings share. It ends with the process."""
    key = (os.getpid(), python, roots, settings)
    with _hosts_lock:
        if key not in _hosts:
            _hosts[key] = Host(python, roots, settings)
            # Registered after the finalizers of the zygotes, it runs before them. Otherwise an ended zygote could be replaced.
            atexit.register(close_hosts)
        return _hosts[key]


def close_hosts() -> None:
    """Ends the hosts of this process."""
    with _hosts_lock:
        mine = [key for key in _hosts if key[0] == os.getpid()]
        for key in mine:
            _hosts.pop(key).close()


class _Computing(WorkerTimeout):
    """A judge has used processor time until its deadline, so the calls are to blame."""


def _unrepeated(error: WorkerError) -> WorkerError:
    kinds = {_Computing: WorkerTimeout, Unread: WorkerDied}
    return kinds.get(type(error), type(error))(f"a judge could not repeat the episode's API calls: {error}")


def _grace_s(step_timeout_s: float) -> float:
    """The seconds for the engine's own timeout to answer, before the process is killed."""
    return min(5.0, step_timeout_s / 4)


def _check(answer: Mapping[str, Any], settings: Settings) -> None:
    """Raises ValueError if a world's answer has the wrong form. The agent's code may have forged it."""
    if set(answer) != {"output", "malformed", "completed", "api_calls"}:
        raise ValueError("it has other fields")
    if not (isinstance(answer["output"], str) and len(answer["output"]) <= settings.max_observation_chars):
        raise ValueError(f"expected an output of at most {settings.max_observation_chars:,} characters")
    if not (isinstance(answer["malformed"], bool) and isinstance(answer["completed"], bool)):
        raise ValueError("expected true or false for malformed and completed")
    if not (type(answer["api_calls"]) is int and 0 <= answer["api_calls"] <= settings.max_api_calls):
        raise ValueError(f"expected a number of API calls up to {settings.max_api_calls:,}")
