"""Hosts, which make and hold worlds. A local host forks them.

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
from typing import Any, Protocol

from eh_gym.errors import ConfigError, EHError, WorkerError, WorkerProtocolError
from envs.appworld import data
from envs.appworld.backend import wire
from envs.appworld.data import Roots
from envs.appworld.forks import Fork, Zygote
from envs.appworld.record import Record

__all__ = ["Host", "LocalHost", "Settings", "World", "close_hosts", "local_host"]

_OPEN_TIMEOUT_S = 120.0
_GRACE_S = 5.0  # gives the engine's own timeout time to answer before the process is killed
_CPU_STEPS = 100  # steps that use all of their time; a world's processor time lasts for so many
_JUDGE_MEMORY_BYTES = 512 << 20  # for the evaluation, in addition to what the world had
_JUDGE_FILE_BYTES = 256 << 20  # the evaluation reads the state from files, one for each app
_JUDGE_OPEN_FILES = 1024


@dataclass(frozen=True)
class Settings:
    """The limits of a world.

    Attributes:
        step_timeout_s: The seconds that one action's code may run, a whole number. The engine then reports a timeout, and the
            episode goes on. Code that cannot be interrupted is killed 5 s later, and its episode is over.
        judge_timeout_s: The seconds that a verdict may take, in addition to those that the episode's steps took. A whole number.
        max_api_calls: The number of API calls that one action may make. Further calls raise.
        max_observation_chars: Longer outputs lose their middle.
        memory_mb: The address space that a world may take in addition to what it starts with, in MiB. A judge may take 512 MiB
            more.
        confined: Whether to confine worlds as far as the host allows. If not, the agent's code can do what the user can.
    """

    step_timeout_s: float = 30.0
    judge_timeout_s: float = 120.0
    max_api_calls: int = 1000
    max_observation_chars: int = 20_000
    memory_mb: int = 1024
    confined: bool = True

    def __post_init__(self) -> None:
        least = {
            "step_timeout_s": 1,
            "judge_timeout_s": 1,
            "max_api_calls": 1,
            "memory_mb": 1,
            "max_observation_chars": 200,
        }
        for name, bound in least.items():
            # The engine's alarm takes whole seconds only. They may be written as 30.0.
            value, kinds = getattr(self, name), (int, float) if name.endswith("_s") else int
            if isinstance(value, bool) or not isinstance(value, kinds) or not (value >= bound and value % 1 == 0):
                raise ConfigError(f"{name} must be a whole number >= {bound}, without quotes, got {value!r}")

    @property
    def cpu_s(self) -> int:
        """The seconds of processor time that a world may use in the whole episode, all threads together."""
        return math.ceil(_CPU_STEPS * self.step_timeout_s)


class World(Protocol):
    """One episode's world."""

    @property
    def about(self) -> Mapping[str, Any]:
        """``instruction``, ``supervisor`` (a dict), ``datetime`` (ISO 8601), ``apps`` (name -> description), ``difficulty``."""

    @property
    def host_failed(self) -> bool:
        """Whether the host is to blame for the error that ``execute`` or ``verdict`` raised, and not the agent's code."""

    def execute(self, code: str) -> Mapping[str, Any]:
        """Runs code. Returns ``output``, ``malformed``, ``completed`` (it completed the task) and ``api_calls`` (a number).

        Raises:
            WorkerError: The world is lost, because of the code unless ``host_failed``.
        """

    def verdict(self) -> Mapping[str, Any]:
        """The official evaluation, with ``success``, ``passed``, ``total`` and ``failures``.

        Raises:
            WorkerError: There is no verdict, because of the code's API calls unless ``host_failed``.
        """

    def close(self) -> None:
        """Ends the world."""


class Host(Protocol):
    """Makes and holds worlds."""

    def task_ids(self, split: str) -> Sequence[str]:
        """The tasks of a split, in AppWorld's order.

        Raises:
            ConfigError: The host has no such split.
        """

    def reference(self, split: str, task_id: str) -> Sequence[str] | None:
        """A task's reference solution, one piece of code for each step; None if the data hold none."""

    def open(self, task_id: str) -> World:
        """A fresh world of a task.

        Raises:
            WorkerError: No world could be made.
        """

    def close(self) -> None:
        """Ends everything."""


class _LocalWorld:
    """A world whose agent's code runs in a process forked here.

    Args:
        host: The host that made it.
        task_id: Its task.
        fork: Its process.
        zygote: The process id of its zygote; if the host's zygote has another one now, this world's zygote was lost.
        about: See World.
    """

    def __init__(self, host: LocalHost, task_id: str, fork: Fork, zygote: int | None, about: Mapping[str, Any]) -> None:
        self.about = about
        self._host, self._task_id, self._fork, self._zygote = host, task_id, fork, zygote
        self._record = Record(host.settings.max_api_calls)
        self._spent_s = 0.0  # by all steps
        self._judge_failed = False

    @property
    def host_failed(self) -> bool:
        return self._judge_failed or not self._host.alive or self._host.pids[0] != self._zygote

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The API calls of all steps, in their order."""
        return self._record.calls

    def execute(self, code: str) -> Mapping[str, Any]:
        settings = self._host.settings
        request = {"code": code, "room_bytes": self._record.room_bytes}
        began = time.monotonic()
        try:
            # A character takes up to 12 bytes in JSON.
            max_bytes = wire.MAX_CALLS_BYTES + 12 * settings.max_observation_chars + 4096
            answer = self._fork.ask(request, settings.step_timeout_s + _GRACE_S, max_bytes=max_bytes)
        finally:
            self._spent_s += time.monotonic() - began
        try:
            return _checked(answer, settings.max_observation_chars) | {"api_calls": self._record.add(answer["calls"])}
        except (KeyError, ValueError) as error:
            self._fork.end()
            raise WorkerProtocolError(f"the world's answer is malformed: {error}") from error

    def verdict(self) -> Mapping[str, Any]:
        """See World. A verdict that fails is tried again.

        If it fails again, another judge evaluates the task without any calls. If that works, the host is well, and the calls are
        to blame: they take more memory, time or disk than a judge may use.
        """
        self._fork.end()  # threads that its code has left would slow the judge down
        # The judge makes the calls that the steps have made, so it gets as much time as they took.
        timeout_s = self._host.settings.judge_timeout_s + self._spent_s
        try:
            return self._host.judge(self._task_id, self._record.frames, timeout_s)
        except WorkerError:
            pass
        try:
            return self._host.judge(self._task_id, self._record.frames, timeout_s)
        except WorkerError as error:
            self._judge_failed = not self._host.can_judge(self._task_id)
            raise type(error)(f"a judge could not repeat the episode's API calls: {error}") from error

    def close(self) -> None:
        self._fork.end()


class LocalHost:
    """Worlds on this machine. Thread-safe.

    A zygote is a process that has imported AppWorld and forks others: one zygote forks the processes of the agents' code,
    another those of the judges.

    Args:
        python: The interpreter of AppWorld's virtualenv.
        roots: The agent's and the judge's data folders.
        settings: What a world may do.
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

    def task_ids(self, split: str) -> Sequence[str]:
        """See Host."""
        return data.task_ids(split)

    def reference(self, split: str, task_id: str) -> Sequence[str] | None:
        """See Host."""
        return data.reference(split, task_id)

    def open(self, task_id: str) -> _LocalWorld:
        """See Host. A world that can't be made is tried a second time."""
        if self._judges.pid is None:
            threading.Thread(target=self._start_judges, daemon=True).start()  # in parallel with the worlds' zygote
        try:
            return self._fork_world(task_id)
        except WorkerError:  # for example, the zygote was killed since the last episode; no agent's code has run yet
            return self._fork_world(task_id)

    def judge(self, task_id: str, frames: Sequence[bytes], timeout_s: float) -> Mapping[str, Any]:
        """The official verdict on the state that these calls (frames of a Record) leave.

        Raises:
            WorkerError: The judge could not be made, or failed.
        """
        settings = self.settings
        limits = {
            "memory_bytes": settings.memory_mb * 2**20 + _JUDGE_MEMORY_BYTES,
            "cpu_s": math.ceil(timeout_s + settings.judge_timeout_s),
            "file_bytes": _JUDGE_FILE_BYTES,
            "open_files": _JUDGE_OPEN_FILES,
        }
        fork = self._judges.fork({"task_id": task_id, "limits": limits})
        try:
            fork.ask(None, _OPEN_TIMEOUT_S)
            answer = fork.ask({"evaluate": True}, timeout_s, before=frames)
            return dict(answer["verdict"])
        finally:
            fork.end()

    def can_judge(self, task_id: str) -> bool:
        """Whether a judge gives a verdict on the task as it is, without any calls."""
        try:
            self.judge(task_id, (), self.settings.judge_timeout_s)
        except WorkerError:
            return False
        return True

    def close(self) -> None:
        """See Host."""
        self._worlds.close()
        self._judges.close()

    def _start_judges(self) -> None:
        with contextlib.suppress(EHError):  # the first verdict tries again
            self._judges.start()

    def _fork_world(self, task_id: str) -> _LocalWorld:
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
        about = fork.ask(None, _OPEN_TIMEOUT_S)["ready"] | {"difficulty": data.difficulty(self._roots.judge, task_id)}
        return _LocalWorld(self, task_id, fork, zygote, about)


_hosts: dict[tuple[Any, ...], Host] = {}
_hosts_lock = threading.Lock()


def local_host(python: Path, roots: Roots, settings: Settings) -> Host:
    """The local host that all environments of this process with the same data and settings share. It ends with the process."""
    key = (os.getpid(), python, roots, settings)
    with _hosts_lock:
        if key not in _hosts:
            _hosts[key] = LocalHost(python, roots, settings)
            # Registered after the finalizers of the host's zygotes, it runs before them: else a zygote that they have ended could
            # be replaced.
            atexit.register(close_hosts)
        return _hosts[key]


def close_hosts() -> None:
    """Ends the hosts of this process."""
    with _hosts_lock:
        mine = [key for key in _hosts if key[0] == os.getpid()]
        for key in mine:
            _hosts.pop(key).close()


def _checked(answer: Mapping[str, Any], max_output_chars: int) -> dict[str, Any]:
    """A world's answer without its calls. The agent's code may have forged it, so this raises if its form is wrong."""
    if not (isinstance(answer["output"], str) and len(answer["output"]) <= max_output_chars):
        raise ValueError(f"expected an output of at most {max_output_chars:,} characters")
    if not (isinstance(answer["malformed"], bool) and isinstance(answer["completed"], bool)):
        raise ValueError("expected true or false for malformed and completed")
    return {name: answer[name] for name in ("output", "malformed", "completed")}
