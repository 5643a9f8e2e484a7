"""ActorPool: Ray actors that hold many environments each.

The pool replaces lost actors itself, because Ray's own retries could carry out a call twice.
"""

import itertools
import logging
import math
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from eh_gym.errors import ConfigError, EHError, WorkerDied, WorkerTimeout
from envs.actors.host import About, EnvHost, EnvKind

_BEGIN_TIMEOUT_S = 120.0  # for all first actors to begin, or for a new one if all are lost
_CALL_TIMEOUT_S = 600.0  # longer than the environments' own deadlines
_REACH_TIMEOUT_S = 10.0  # for the port of the cluster's head to answer
_THREADS = 64  # per actor, the most that ThreadVectorEnv has
_OBJECT_STORE_BYTES = 100_000_000  # for a Ray started by this process


@dataclass(eq=False)
class _Actor:
    handle: Any
    begun: Any  # Ray's reference to the result of the latest `begin`
    node: str = ""  # the id of its node
    name: str = "a new node"  # the readable name of its node
    alive: bool = False  # whether it has begun and was not lost since
    sure: bool = False  # whether the last `begin` was answered
    seats: int = 0  # the number of its environments


@dataclass(frozen=True, eq=False)
class Seat:
    """An environment's place: an actor, and the environment's key in it."""

    actor: _Actor
    key: int


class ActorPool:
    """Several actors over the nodes of a Ray cluster. A new environment goes to the actor with the fewest. Thread-safe.

    The pool replaces an actor that dies, hangs or is cut off by a new one, which Ray starts as soon as a node has room.
    Meanwhile the other actors take its environments. A new actor on a node that lacks a backend is not used.

    Args:
        size: The number of actors, >= 1.
        address: "auto" or HOST:PORT for the cluster that this machine has joined; empty to start Ray for this process.
            A cluster that the process is connected to already is used in any case.
        cpus: The CPU cores, as Ray counts them, that each actor reserves on its node, >= 0.

    Raises:
        ConfigError: An argument is wrong, no cluster answers, or the cluster has no room for all actors.
    """

    def __init__(self, size: int, *, address: str = "", cpus: float = 1.0) -> None:
        self._ray = ray = _connected(address, size * cpus)
        self._class = self._ray.remote(EnvHost).options(
            num_cpus=cpus, max_concurrency=_THREADS, scheduling_strategy="SPREAD"
        )
        self._lock = threading.RLock()
        self._keys = itertools.count()
        self._abouts: dict[str, About] = {}
        self._kinds: list[EnvKind] = []
        self._actors = [self._new() for _ in range(size)]
        deadline = time.monotonic() + _BEGIN_TIMEOUT_S
        while (alive := len(self.nodes)) < size:
            total, free = (
                resources.get("CPU", 0.0) for resources in (ray.cluster_resources(), ray.available_resources())
            )
            if size * cpus > total or time.monotonic() > deadline:
                self.close()
                raise ConfigError(
                    f"{size} actors of {cpus:g} CPUs each were requested, and {alive} could begin. The cluster has "
                    f"{total:g} CPUs, {free:g} of them free; add nodes, or play fewer episodes at once"
                )
            ray.wait([actor.begun for actor in self._actors if not actor.alive], timeout=1.0)

    @property
    def nodes(self) -> list[str]:
        with self._lock:
            self._look()
            return [a.node for a in self._actors if a.alive]

    def about(self, kind: EnvKind) -> About:
        with self._lock:
            if kind.name not in self._abouts:
                self._look()
                answers = [(a, a.handle.begin.remote([kind])) for a in self._living()]
                abouts = [self._answer(a, answer)[2][0] for a, answer in answers]
                self._kinds.append(kind)
                self._abouts[kind.name] = abouts[0]
            return self._abouts[kind.name]

    def seat(self, now: Seat | None, *, stay: bool) -> Seat:
        """A place for an environment's next episode.

        The actor with the fewest environments is preferred, then the present one. After the loss of an actor, the
        others of its node come last until they have answered.
        """
        with self._lock:
            self._look()
            if now is not None and now.actor.alive and stay:
                return now
            actor = None if now is None else now.actor
            best = min(self._living(), key=lambda a: (not a.sure, a.seats - (a is actor), a is not actor))
            if now is not None:
                if best is actor:
                    return now
                self.leave(now)
            best.seats += 1
            return Seat(best, next(self._keys))

    def leave(self, seat: Seat) -> None:
        with self._lock:
            seat.actor.seats -= 1
            if seat.actor.alive:
                seat.actor.handle.close.remote(seat.key)

    def call(self, seat: Seat, method: str, *arguments: Any) -> Any:
        """Calls a method of the actor, whose first argument is the environment's key. Raises what it raises.

        If the actor is lost, or does not answer in time and is killed, this is a WorkerError.
        """
        actor = seat.actor
        if not actor.alive:
            raise WorkerDied(f"the Ray actor on {actor.name} is gone")
        return self._answer(actor, getattr(actor.handle, method).remote(seat.key, *arguments))

    def close(self) -> None:
        with self._lock:
            for actor in self._actors:
                actor.alive = False
                self._ray.kill(actor.handle)
            self._actors = []

    # The caller of a method below must hold the lock, except for the last two (_lose and _answer).

    def _new(self) -> _Actor:
        handle = self._class.remote()
        return _Actor(handle, handle.begin.remote(self._kinds))

    def _look(self) -> None:
        for actor in list(self._actors):
            if not actor.sure and self._ray.wait([actor.begun], timeout=0)[0]:
                try:
                    actor.node, actor.name, _ = self._answer(actor, actor.begun)
                    actor.alive = actor.sure = True
                except (WorkerDied, WorkerTimeout):
                    pass  # it is replaced already
                except Exception as error:  # the node can't make one of the kinds, and would fail again
                    logging.getLogger(__name__).warning("a new Ray actor is not used: %s", error)
                    self._ray.kill(actor.handle)
                    self._actors.remove(actor)

    def _living(self) -> list[_Actor]:
        if not any(actor.alive for actor in self._actors) and self._actors:
            self._ray.wait([actor.begun for actor in self._actors], timeout=_BEGIN_TIMEOUT_S)
            self._look()
        alive = [actor for actor in self._actors if actor.alive]
        if not alive:
            raise EHError(
                f"all actors are lost, and no new one could begin within {_BEGIN_TIMEOUT_S:g} s; see `ray status`, and "
                "go on with --resume when there are nodes again"
            )
        return alive

    def _lose(self, actor: _Actor) -> None:
        with self._lock:
            if actor in self._actors:
                actor.alive = False
                self._ray.kill(actor.handle)
                self._actors[self._actors.index(actor)] = self._new()
                for other in self._actors:
                    if other.alive and other.node == actor.node:
                        other.sure, other.begun = False, other.handle.begin.remote([])

    def _answer(self, actor: _Actor, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=_CALL_TIMEOUT_S)
        except errors.GetTimeoutError as error:
            self._lose(actor)
            raise WorkerTimeout(
                f"the Ray actor on {actor.name} did not answer within {_CALL_TIMEOUT_S:g} s and was killed"
            ) from error
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            self._lose(actor)
            lines = str(error).strip().splitlines() or [type(error).__name__]
            message = " … ".join(dict.fromkeys((lines[0], lines[-1])))
            raise WorkerDied(f"the Ray actor on {actor.name} is lost: {message}") from error


_shared_pools: dict[tuple[int, str], ActorPool] = {}


def shared_actors(size: int, address: str) -> ActorPool:
    """The pool of this size that this process shares from the first use until `close_shared_actors`."""
    if (size, address) not in _shared_pools:
        _shared_pools[size, address] = ActorPool(size, address=address)
    return _shared_pools[size, address]


def close_shared_actors() -> None:
    for pool in _shared_pools.values():
        pool.close()
    _shared_pools.clear()


def _connected(address: str, cpus: float) -> Any:
    import ray  # of an extra

    if ray.is_initialized():
        return ray
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not address:
        cores = max(os.cpu_count() or 1, math.ceil(cpus))
        ray.init("local", num_cpus=cores, include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **quiet)
        return ray
    try:
        host, _, port = address.rpartition(":")
        if port.isdigit():  # checked first, because Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=_REACH_TIMEOUT_S).close()
        ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at --ray-address {address} ({str(error).strip().splitlines()[0]}); start one here "
            "with `ray start --head`, or join one with `ray start --address HOST:PORT`, and give --ray-address auto; "
            "without --ray-address, the run starts a Ray of its own on this machine"
        ) from error
    return ray
