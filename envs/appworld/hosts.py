"""Hosts, which make and hold worlds. A local host forks them; a remote host (remote.py) asks another machine for them.

What the agent sees of a world is decided in env.py.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from eh_gym.errors import ConfigError, WorkerProtocolError
from envs.appworld import data
from envs.appworld.ahead import Ahead
from envs.appworld.backend.adaptations import ALL as ADAPTATIONS
from envs.appworld.data import Roots
from envs.appworld.forks import Fork, Zygote

__all__ = ["ADAPTATIONS", "Host", "LocalHost", "Settings", "World", "close_hosts", "local_host", "shared_host"]

_OPEN_TIMEOUT_S = 120.0
_GRACE_S = 5.0  # gives the engine's own timeout time to answer before the process is killed
_MAX_CALLS = 20_000  # API calls of an episode, all of which a judge makes again
_MAX_CALL_CHARS = 2_000_000  # in all calls of an episode; JSON takes up to 12 bytes for each, and a message has a limit


@dataclass(frozen=True)
class Settings:
    """What a world may do.

    Attributes:
        step_timeout_s: The seconds that one action's code may run. The engine then reports a timeout, and the episode goes
            on. Code that cannot be interrupted is killed 5 s later, and its episode is over.
        judge_timeout_s: The seconds that a verdict may take.
        max_api_calls: The number of API calls that one action may make. Further calls raise.
        max_output_chars: Longer outputs lose their middle.
        memory_mb: The address space that a world may take in addition to what it starts with, in MiB.
        adaptations: The names of the time-saving changes to the engine that are applied.
        confined: Whether to confine worlds as far as the host allows. If not, the agent's code can do what the user can.
    """

    step_timeout_s: float = 30.0
    judge_timeout_s: float = 120.0
    max_api_calls: int = 1000
    max_output_chars: int = 20_000
    memory_mb: int = 1024
    adaptations: tuple[str, ...] = tuple(ADAPTATIONS)
    confined: bool = True

    def __post_init__(self) -> None:
        for name in ("step_timeout_s", "judge_timeout_s", "max_api_calls", "memory_mb"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.max_output_chars < 200:
            raise ConfigError(f"max_output_chars must be >= 200, got {self.max_output_chars}")
        unknown = sorted(set(self.adaptations) - set(ADAPTATIONS))
        if unknown:
            raise ConfigError(f"unknown adaptations {', '.join(unknown)}; choose from {', '.join(ADAPTATIONS)}")
        missing = sorted({"call_inline", "save_nothing"} - set(self.adaptations))
        if self.confined and missing:
            raise ConfigError(
                f"a confined world can have no threads and write no files, so it needs the adaptations {', '.join(missing)}; "
                "add them or pass confined=False"
            )


class World(Protocol):
    """One episode's world."""

    @property
    def about(self) -> Mapping[str, Any]:
        """``instruction``, ``supervisor`` (a dict), ``datetime`` (ISO 8601), ``apps`` (name -> description), ``difficulty``."""

    @property
    def host_failed(self) -> bool:
        """Whether a lost world was lost because its host failed, and not because of its code."""

    def execute(self, code: str) -> Mapping[str, Any]:
        """Runs code. Returns ``output``, ``malformed``, ``completed`` (it completed the task) and ``api_calls`` (a number).

        Raises:
            WorkerError: The world is lost, because of the code unless ``host_failed``.
        """

    def verdict(self) -> Mapping[str, Any]:
        """The official evaluation, with ``success``, ``passed``, ``total`` and ``failures``.

        Raises:
            WorkerError: The judge failed.
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
        """A fresh world of a task. It is one that ``prepare`` has made ahead, if there is one.

        Raises:
            WorkerError: No world could be made.
        """

    def prepare(self, task_ids: Sequence[str]) -> None:
        """Makes worlds ahead for these tasks, one for each mention. Worlds made earlier that these do not need are closed."""

    def close(self) -> None:
        """Ends everything."""


@dataclass
class _LocalWorld:
    """A world whose agent's code runs in a process forked here."""

    host: LocalHost
    task_id: str
    fork: Fork
    zygote: int | None  # its process id; if the host's zygote has another one now, this world's zygote was lost
    about: Mapping[str, Any]
    calls: list[Mapping[str, Any]] = field(default_factory=list)
    call_chars: int = 0

    @property
    def host_failed(self) -> bool:
        return not self.host.alive or self.host.pids[0] != self.zygote

    def execute(self, code: str) -> Mapping[str, Any]:
        settings = self.host.settings
        answer = self.fork.ask({"code": code}, settings.step_timeout_s + _GRACE_S)
        try:
            made = _checked(answer, settings.max_output_chars)
        except (KeyError, TypeError, ValueError) as error:
            self.fork.end()
            raise WorkerProtocolError(f"the world sent an answer that is none: {error}") from error
        self.calls += made
        self.call_chars += sum(len(text) for call in made for text in _texts(call))
        if len(self.calls) > _MAX_CALLS or self.call_chars > _MAX_CALL_CHARS:
            self.fork.end()
            allowed = f"{_MAX_CALLS:,} API calls, or of {_MAX_CALL_CHARS:,} characters"
            raise WorkerProtocolError(f"the episode made more than {allowed}")
        return {
            "output": answer["output"],
            "malformed": answer["malformed"],
            "completed": answer["completed"],
            "api_calls": len(made),
        }

    def verdict(self) -> Mapping[str, Any]:
        return self.host.judge(self.task_id, self.calls)

    def close(self) -> None:
        self.fork.end()


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
        self._worlds = Zygote(python, roots.agent, "world", settings.adaptations, settings.confined)
        self._judges = Zygote(python, roots.judge, "judge", settings.adaptations, False)
        self._ahead = Ahead(self._make)
        self._starter = ThreadPoolExecutor(1, "appworld-start")

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
        """See Host."""
        while (world := self._ahead.take(task_id)) is not None:
            if not world.host_failed:
                return world
        return self._make(task_id)

    def prepare(self, task_ids: Sequence[str]) -> None:
        """See Host."""
        self._ahead.prepare(task_ids)

    def judge(self, task_id: str, calls: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The official verdict on the state that these calls leave."""
        fork = self._judges.fork({"task_id": task_id})
        try:
            answer = fork.ask({"calls": list(calls)}, self.settings.judge_timeout_s)
            return dict(answer["verdict"])
        finally:
            fork.end()

    def close(self) -> None:
        """See Host."""
        self._ahead.stop()
        self._starter.shutdown(wait=False, cancel_futures=True)
        self._worlds.close()
        self._judges.close()

    def _make(self, task_id: str) -> _LocalWorld:
        if self._judges.pid is None:
            self._starter.submit(self._judges.start)  # in parallel with the worlds' zygote
        settings = self.settings
        fork = self._worlds.fork(
            {
                "task_id": task_id,
                "timeout_s": settings.step_timeout_s,
                "max_api_calls": settings.max_api_calls,
                "max_output_chars": settings.max_output_chars,
                "limits": {"memory_bytes": settings.memory_mb * 2**20},
            }
        )
        zygote, _ = self.pids
        about = fork.ask(None, _OPEN_TIMEOUT_S)["ready"] | {"difficulty": data.difficulty(self._roots.judge, task_id)}
        return _LocalWorld(self, task_id, fork, zygote, about)


_hosts: dict[tuple[Any, ...], Host] = {}
_hosts_lock = threading.Lock()


def shared_host(key: tuple[Any, ...], make: Callable[[], Host]) -> Host:
    """The host that all environments of this process with the same key share. It ends with the process."""
    key = (os.getpid(), *key)
    with _hosts_lock:
        if key not in _hosts:
            _hosts[key] = make()
        return _hosts[key]


def local_host(python: Path, roots: Roots, settings: Settings) -> Host:
    """The local host that all environments of this process with the same data and settings share."""
    return shared_host((python, roots, settings), lambda: LocalHost(python, roots, settings))


def close_hosts() -> None:
    """Ends the hosts of this process."""
    with _hosts_lock:
        mine = [key for key in _hosts if key[0] == os.getpid()]
        for key in mine:
            _hosts.pop(key).close()


atexit.register(close_hosts)


def _checked(answer: Mapping[str, Any], max_output_chars: int) -> list[dict[str, Any]]:
    """The calls of a world's answer. The agent's code may have forged the answer, so this raises if its form is wrong."""
    if not (isinstance(answer["output"], str) and len(answer["output"]) <= max_output_chars):
        raise ValueError("the output is no text, or too long")
    if not (isinstance(answer["malformed"], bool) and isinstance(answer["completed"], bool)):
        raise ValueError("a flag is none")
    made = [{name: call[name] for name in ("method", "url", "headers", "body", "status")} for call in answer["calls"]]
    for call in made:
        if not (isinstance(call["headers"], dict) and isinstance(call["status"], int)):
            raise ValueError("a call is none")
        if not all(isinstance(text, str) for text in _texts(call)):
            raise ValueError("a call is none")
    return made


def _texts(call: Mapping[str, Any]) -> list[str]:
    return [call["method"], call["url"], call["body"], *call["headers"].keys(), *call["headers"].values()]
