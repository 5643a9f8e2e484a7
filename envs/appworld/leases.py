"""Leases: each lends a host's world to one client until the client gives it back or is silent for too long.

Every request may come twice, because a client whose connection broke cannot know whether its request arrived. The second
copy waits for the answer to the first and gets the same answer, and nothing is done twice. To make this possible, the client
names its leases itself and numbers the requests of each. Leases are lost when this process ends. server.py receives the
requests.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from eh_gym.errors import ConfigError, EHError, WorkerCallError, WorkerError
from envs.appworld.ahead import Ahead
from envs.appworld.hosts import Host, Settings, World

__all__ = ["Leases", "Refused"]

_MAX_SETTINGS = 4  # different settings; each has warm processes of its own
_REMEMBERED = 10_000  # leases that have ended, with the reason


class Refused(EHError):
    """A request that does not fit the present leases.

    Args:
        status: The HTTP status: 404 unknown lease, 409 out of order, 410 lease ended, 503 no room.
        message: The reason.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Counted:
    """A world that counts towards max_worlds until it is closed."""

    def __init__(self, world: World, closed: Callable[[], None]) -> None:
        self.world, self._closed = world, closed

    def close(self) -> None:
        try:
            self.world.close()
        finally:
            self._closed()


@dataclass
class _Client:
    """One client's worlds with the same settings."""

    host: Host
    ahead: Ahead[_Counted]
    used: float = field(default_factory=time.monotonic)


@dataclass
class _Lease:
    client_id: str
    client: _Client
    number: int = 0  # the number of the last request; the request that opened the lease has 0
    answer: Future[Any] = field(default_factory=Future)  # the answer to the last request
    kept: _Counted | None = None
    running: int = 0  # how many requests wait for an answer
    ended: bool = False
    used: float = field(default_factory=time.monotonic)


class Leases:
    """All leases of one server. Thread-safe.

    Args:
        make_host: Makes a host with the given settings. It is called once for each settings. The hosts are closed with the
            leases.
        splits: The splits whose tasks may be played.
        max_worlds: The most worlds at a time, including those that are made ahead.
        idle_timeout_s: After so many seconds without a request, a lease ends, and a client's worlds made ahead are closed.
    """

    def __init__(
        self,
        make_host: Callable[[Settings], Host],
        splits: Sequence[str],
        max_worlds: int = 128,
        idle_timeout_s: float = 900.0,
    ) -> None:
        if max_worlds < 1:
            raise ConfigError(f"max_worlds must be >= 1, got {max_worlds}")
        if not idle_timeout_s > 0:
            raise ConfigError(f"idle_timeout_s must be > 0, got {idle_timeout_s}")
        self._make_host, self._max_worlds, self._idle_timeout_s = make_host, max_worlds, idle_timeout_s
        self._lock = threading.Lock()
        self._hosts: dict[Settings, Host] = {}
        self._clients: dict[tuple[str, Settings], _Client] = {}
        self._leases: dict[str, _Lease] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()  # lease -> why it ended
        self._count = 0
        self._closed = threading.Event()
        self._tasks = {split: tuple(self._host(Settings()).task_ids(split)) for split in splits}
        threading.Thread(target=self._watch, name="appworld-leases", daemon=True).start()

    def task_ids(self, split: str) -> Sequence[str]:
        """The tasks of a split; ConfigError if the split is not one of those that are served."""
        if split not in self._tasks:
            raise ConfigError(f"the server has the split {', '.join(self._tasks)}, not {split!r}")
        return self._tasks[split]

    def reference(self, split: str, task_id: str) -> Sequence[str] | None:
        """A task's reference solution; ConfigError if the split has no such task."""
        if task_id not in self.task_ids(split):
            raise ConfigError(f"the server's split {split!r} has no task {task_id!r}")
        return self._host(Settings()).reference(split, task_id)

    def open(self, client_id: str, lease_id: str, task_id: str, settings: Settings) -> Mapping[str, Any]:
        """Opens a lease on a fresh world and returns the world's ``about``.

        Raises:
            Refused: There is no room, or the lease has ended already.
            ConfigError: There is no such task, or there are too many different settings.
            WorkerError: The world could not be made.
        """
        self._check(task_id)
        client = self._client(client_id, settings)

        def work(lease: _Lease) -> Mapping[str, Any]:
            lease.kept = self._open(client, task_id)
            return dict(lease.kept.world.about)

        with self._lock:
            if lease_id in self._gone:
                raise Refused(410, f"the lease has ended: {self._gone[lease_id]}")
            first = lease_id not in self._leases
            lease = self._leases.setdefault(lease_id, _Lease(client_id, client))
            if lease.number != 0:
                raise Refused(409, "the lease is open, and has been used since")
            lease.running += 1
            answer = lease.answer
        return self._answered(lease, answer, work if first else None)

    def execute(self, lease_id: str, number: int, code: str) -> Mapping[str, Any]:
        """Runs code and returns World.execute's answer. If the code lost the world: ``lost`` (an error's name) and ``message``.

        Raises:
            Refused: The lease is unknown or has ended, or the request is not its next one.
            WorkerError: The host failed.
        """
        return self._next(lease_id, number, lambda world: world.execute(code))

    def verdict(self, lease_id: str, number: int) -> Mapping[str, Any]:
        """Returns World.verdict's answer. ``lost`` and errors as for ``execute``."""
        return self._next(lease_id, number, lambda world: world.verdict())

    def end(self, lease_id: str) -> None:
        """Ends a lease. Does nothing if it has ended already."""
        with self._lock:
            kept = self._drop(lease_id, "its client gave it back")
        if kept is not None:
            kept.close()

    def prepare(self, client_id: str, task_ids: Sequence[str], settings: Settings) -> None:
        """Host.prepare for one client.

        If there is no room, no world is made ahead. If a lease needs room, a world that was made ahead is closed.
        """
        for task_id in task_ids:
            self._check(task_id)
        self._client(client_id, settings).ahead.prepare(task_ids)

    def leave(self, client_id: str) -> None:
        """Ends a client's leases and closes its worlds made ahead."""
        self._forget(
            "its client has left", lambda key, _: key[0] == client_id, lambda lease: lease.client_id == client_id
        )

    def close(self) -> None:
        """Ends all worlds and their hosts. Idempotent."""
        with self._lock:
            self._closed.set()
            clients, hosts = list(self._clients.values()), list(self._hosts.values())
        for client in clients:
            client.ahead.stop()
        for host in hosts:
            host.close()

    def _check(self, task_id: str) -> None:
        if not any(task_id in ids for ids in self._tasks.values()):
            raise ConfigError(f"the server's split {', '.join(self._tasks)} has no task {task_id!r}")

    def _host(self, settings: Settings) -> Host:
        with self._lock:
            return self._host_locked(settings)

    def _host_locked(self, settings: Settings) -> Host:
        self._refuse_if_closed()
        if settings not in self._hosts:
            # One more is allowed, for the default settings, which always have a host: it costs nothing before its first world.
            if len(self._hosts) > _MAX_SETTINGS:
                raise ConfigError(
                    f"the server's worlds have {_MAX_SETTINGS} different settings already; use one of these settings, or restart "
                    "the server"
                )
            self._hosts[settings] = self._make_host(settings)
        return self._hosts[settings]

    def _client(self, client_id: str, settings: Settings) -> _Client:
        with self._lock:
            host = self._host_locked(settings)
            if (client_id, settings) not in self._clients:
                self._clients[client_id, settings] = _Client(host, Ahead(lambda task_id: self._make(host, task_id)))
            client = self._clients[client_id, settings]
            client.used = time.monotonic()
            return client

    def _make(self, host: Host, task_id: str) -> _Counted:
        with self._lock:
            self._refuse_if_closed()
            if self._count >= self._max_worlds:
                raise Refused(503, f"all {self._max_worlds} worlds of the server are in use; raise its --max-worlds")
            self._count += 1
        try:
            return _Counted(host.open(task_id), self._release)
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        with self._lock:
            self._count -= 1

    def _open(self, client: _Client, task_id: str) -> _Counted:
        while (made := client.ahead.take(task_id)) is not None:
            if not made.world.host_failed:
                return made
            made.close()
        while True:
            try:
                return self._make(client.host, task_id)
            except Refused:
                with self._lock:
                    others = list(self._clients.values())
                if not any(each.ahead.drop() for each in [client, *others]):
                    raise

    def _next(self, lease_id: str, number: int, use: Callable[[World], Mapping[str, Any]]) -> Mapping[str, Any]:
        def work(lease: _Lease) -> Mapping[str, Any]:
            world = _known(lease).world
            try:
                return dict(use(world))
            except WorkerError as error:
                if world.host_failed:
                    raise
                return {"lost": type(error).__name__, "message": str(error)}

        with self._lock:
            self._refuse_if_closed()
            lease = self._leases.get(lease_id)
            if lease is None:
                if lease_id in self._gone:
                    raise Refused(410, f"the lease has ended: {self._gone[lease_id]}")
                raise Refused(
                    404, "the server knows no such lease; it was started again since, or the lease ended long ago"
                )
            first = number == lease.number + 1 and lease.answer.done()
            if first:
                lease.number, lease.answer = number, Future()
            elif number != lease.number:
                raise Refused(
                    409, f"the lease's last request was {lease.number}; {number} is neither that nor the next"
                )
            lease.running += 1
            answer = lease.answer
        return self._answered(lease, answer, work if first else None)

    def _answered(
        self, lease: _Lease, answer: Future[Any], work: Callable[[_Lease], Mapping[str, Any]] | None
    ) -> Mapping[str, Any]:
        """A request's answer. ``work`` finds it here; without ``work``, another thread does."""
        try:
            if work is not None:
                try:
                    answer.set_result(work(lease))
                except BaseException as error:
                    answer.set_exception(error)
            result: Mapping[str, Any] = answer.result()
            return result
        finally:
            with self._lock:
                lease.running -= 1
                lease.used = lease.client.used = time.monotonic()
                kept = self._last_of(lease)
            if kept is not None:
                kept.close()

    def _drop(self, lease_id: str, why: str) -> _Counted | None:
        """Forgets a lease. Returns its world if nobody uses it any more; otherwise its last user closes it."""
        self._gone.setdefault(lease_id, why)
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return None
        lease.ended = True
        return self._last_of(lease)

    def _last_of(self, lease: _Lease) -> _Counted | None:
        if not lease.ended or lease.running:
            return None
        kept, lease.kept = lease.kept, None
        return kept

    def _watch(self) -> None:
        while not self._closed.wait(min(5.0, self._idle_timeout_s / 4)):
            self._forget(
                f"nobody used it for {self._idle_timeout_s:g} s",
                lambda _, client: self._silent(client),
                lambda lease: not lease.running and self._silent(lease),
            )

    def _silent(self, used: _Client | _Lease) -> bool:
        return time.monotonic() - used.used > self._idle_timeout_s

    def _forget(
        self, why: str, which: Callable[[tuple[str, Settings], _Client], bool], whose: Callable[[_Lease], bool]
    ) -> None:
        """Closes the worlds made ahead for some clients, and ends some leases."""
        with self._lock:
            clients = [self._clients.pop(key) for key, client in list(self._clients.items()) if which(key, client)]
            kept = [self._drop(lease_id, why) for lease_id, lease in list(self._leases.items()) if whose(lease)]
        for client in clients:
            client.ahead.prepare(())
            client.ahead.stop()
        for world in kept:
            if world is not None:
                world.close()

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            raise Refused(503, "the server is going down")


def _known(lease: _Lease) -> _Counted:
    if lease.kept is None:
        raise WorkerCallError("the lease has no world: it could not be made")
    return lease.kept
