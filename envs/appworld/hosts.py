"""Hosts, which fork worlds. env.py decides what the agent sees of a world."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError, WorkerDied, WorkerError
from eh_gym.surrogates import escaped
from envs.appworld import data
from envs.appworld.backend import link
from envs.appworld.forks import Fork, Unread, Zygote
from envs.appworld.turns import Step, turns

_OPEN_TIMEOUT_S = 120.0
_SAVE_TIMEOUT_S = 600.0
_MOST_CHARS = link.MAX_BODY_BYTES // 4  # of at most 4 bytes each
_CPU_STEPS = 100  # a process's processor time, in full steps


@dataclass(frozen=True)
class Settings:
    """The limits of a world: arguments of `envs.appworld.env.AppWorldEnv`, which describes them."""

    step_timeout_s: float = 30.0
    max_api_calls: int = 1000
    max_observation_chars: int = 20_000
    memory_mb: int = 1024
    confined: bool = True

    def __post_init__(self) -> None:
        least = {"step_timeout_s": 1, "max_api_calls": 1, "memory_mb": 1, "max_observation_chars": 200}
        for name, bound in least.items():
            # The engine's alarm takes whole seconds.
            value, kinds = getattr(self, name), (int, float) if name.endswith("_s") else int
            if isinstance(value, bool) or not isinstance(value, kinds) or not (value >= bound and value % 1 == 0):
                raise ConfigError(f"{name} must be a whole number >= {bound}, without quotes, got {value!r}")
        if self.max_observation_chars > _MOST_CHARS:
            raise ConfigError(
                f"max_observation_chars must be at most {_MOST_CHARS:,}, got {self.max_observation_chars:,}"
            )


class TaskWorld:
    """One episode's world: a process with the apps, and one for the agent's code. `about` describes the task.

    A WorkerError means that the world is lost, because of the code unless `host_failed`: no processes could be made, or
    new ones ended unread.
    """

    def __init__(self, host: Host, task_id: str, record: bool, processes: _Processes) -> None:
        self._host, self._task_id, self._record = host, task_id, record
        self._apps, self._shell, self.about = processes
        self._new = True  # no code has run
        self._ran_s = 0.0  # in the last step
        self.host_failed = False

    def execute(self, code: str) -> Mapping[str, Any]:
        """Runs code. Returns ``output``, ``malformed``, ``completed`` and ``api_calls`` (a number)."""
        new, self._new = self._new, False
        try:
            return self._execute(code)
        except Unread as error:
            if not new:
                raise WorkerDied(str(error)) from error
        # No code was read, so new processes can take over unnoticed.
        self.close()
        self.host_failed = True
        self._apps, self._shell, _ = self._host.fork_world(self._task_id, self._record)
        self.host_failed = False
        try:
            return self._execute(code)
        except Unread:
            self.host_failed = True
            raise

    def _execute(self, code: str) -> Mapping[str, Any]:
        step = Step(self._apps, self._shell, self._host.settings.step_timeout_s)
        try:
            self._shell.signal(signal.SIGCONT)
            answer = self._apps.ask({"code": code}, step=step)
        finally:
            self._shell.signal(signal.SIGSTOP)  # with threads that the code has left
            step.refresh()
            self._ran_s = step.ran_s
        if "lost" in answer:
            raise (Unread if answer["unread"] else WorkerDied)(escaped(answer["lost"]))
        return answer

    def verdict(self) -> Mapping[str, Any]:
        """The official evaluation: ``success``, ``passed``, ``total`` and ``failures``. No code can run afterwards."""
        self._shell.end()
        left_s = 2 * self._host.settings.step_timeout_s - self._ran_s
        return dict(self._apps.ask({"verdict": True}, step=Step(self._apps, None, left_s))["verdict"])

    def save(self, folder: Path, turns: Sequence[tuple[str, str]]) -> None:
        """Writes the episode as AppWorld writes a task of an experiment. Needs `record`."""
        self._apps.ask({"save": str(folder), "turns": turns}, timeout_s=_SAVE_TIMEOUT_S)

    def close(self) -> None:
        self._shell.end()
        self._apps.end()


class Host:
    """Makes worlds on this machine, with one zygote for the apps and one for the agents' code. Thread-safe."""

    def __init__(self, python: Path, root: Path, settings: Settings = Settings()) -> None:
        self.settings = settings
        self._root = root
        self._apps = Zygote(python, lambda: {"root": str(root)})
        self._shells = Zygote(python, self._of_shells)

    @property
    def alive(self) -> bool:
        return self._apps.alive and self._shells.alive

    @property
    def pids(self) -> tuple[int | None, int | None]:
        return self._apps.pid, self._shells.pid

    def open(self, task_id: str, record: bool = False) -> TaskWorld:
        """A fresh world of a task. `record` keeps its calls for ``TaskWorld.save``."""
        return TaskWorld(self, task_id, record, self.fork_world(task_id, record))

    def fork_world(self, task_id: str, record: bool) -> _Processes:
        with turns().reset():
            with contextlib.suppress(WorkerError):  # no code has run yet
                return self._fork_world(task_id, record)
            return self._fork_world(task_id, record)

    def clear(self) -> None:
        self._apps.clear()
        self._shells.clear()

    def close(self) -> None:
        self._shells.close()
        self._apps.close()

    def _of_shells(self) -> Mapping[str, Any]:
        self._apps.start()
        return {"apis": self._apps.told["apis"], "confined": self.settings.confined}

    def _fork_world(self, task_id: str, record: bool) -> _Processes:
        settings = self.settings
        if not self.alive:  # both import AppWorld at once
            with ThreadPoolExecutor(2) as threads:
                for starting in [threads.submit(zygote.start) for zygote in (self._apps, self._shells)]:
                    starting.result()
        options = {"max_api_calls": settings.max_api_calls, "max_output_chars": settings.max_observation_chars}
        limits = {"memory_bytes": settings.memory_mb << 20, "cpu_s": _CPU_STEPS * round(settings.step_timeout_s)}
        more = {
            "memory_bytes": limits["memory_bytes"] + (512 << 20),
            "cpu_s": limits["cpu_s"] + 60,
            "file_bytes": 256 << 20,
            "open_files": 1024,
        }
        with contextlib.ExitStack() as failed:
            apps = self._apps.fork(options | {"task_id": task_id, "record": record, "limits": more})
            failed.callback(apps.end)
            told = {"timeout_s": settings.step_timeout_s, "own_alarm": not apps.signal(0), "limits": limits}
            shell = self._shells.fork(options | told)
            failed.callback(shell.end)
            apps.give(shell)
            about = apps.ask(timeout_s=_OPEN_TIMEOUT_S)["ready"]
            failed.pop_all()
        turns().made(apps)
        return apps, shell, about | {"difficulty": data.difficulty(self._root, task_id)}


_Processes = tuple[Fork, Fork, Mapping[str, Any]]
_hosts: dict[tuple[Any, ...], Host] = {}
_hosts_lock = threading.Lock()


def shared_host(python: Path, root: Path, settings: Settings) -> Host:
    key = (os.getpid(), python, root, settings)
    with _hosts_lock:
        if key not in _hosts:
            _hosts[key] = Host(python, root, settings)
            # Runs before the zygotes' finalizers, so that no ended zygote is replaced.
            atexit.register(close_hosts)
        return _hosts[key]


def close_hosts() -> None:
    with _hosts_lock:
        mine = [key for key in _hosts if key[0] == os.getpid()]
        for key in mine:
            _hosts.pop(key).close()
