"""One controller that many processes share.

The process that makes a SharedHorizon owns it: K moves only there. A copy in another process (by fork, or by pickling
under spawn and forkserver) reads K from a memory-mapped file and appends each outcome to a journal with a single
write. If each episode has its own K, the owner also writes the controller to a file after each update, and the copies
read that. No lock is taken between processes, so one that is killed at any moment leaves nothing locked. The journal
only grows: it can't be cut short while a process may be appending to it. All processes must run on one machine.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import pickle
import shutil
import tempfile
import threading
import weakref
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, check_outcome, episode_horizon, is_controller

__all__ = ["SharedHorizon"]

_encode = json.JSONEncoder(separators=(",", ":")).encode


class SharedHorizon:
    """Lets environments in other processes read K and record outcomes.

    An outcome whose `record` has returned, in any process, is counted exactly once, at the owner's next `update` or
    `state_dict`, also if its process is killed right after; if it is killed inside `record`, this one outcome may be
    lost, and no other. Outcomes of one process keep their order. Of an outcome's ``info``, the keys are handed over that the
    controller's ``info_keys`` names, as texts.

    If the controller has ``horizon_for``, so has this one. It needs ``info_keys`` then (a tuple of the keys of the info that its
    `record` reads, empty for none), and it must be possible to pickle it. `TaskHorizon` and `KeyedHorizon` are so.

    The journal takes about 40 bytes per outcome plus the task id (40 MB for a million episodes). It is in shared memory
    (``/dev/shm``), or in the temporary folder if the system has no such folder. `close`, or the end of the owner,
    removes it. If the owner is killed, a file ``eh-horizon-*`` stays behind.

    Only the owner's `update` moves K. With environments in subprocesses, call it between two rollouts (in
    Stable-Baselines3 from a callback's ``_on_rollout_end``), and leave ``update_every`` of `ElasticTimeLimit` at None.

    Args:
        controller: The controller that decides. From now on, do not call its `record` or `update` directly.

    >>> from eh_gym.horizon import ElasticHorizon
    >>> with SharedHorizon(ElasticHorizon(k0=12, min_successes=1)) as shared:
    ...     shared.record(EpisodeOutcome(length=9, horizon=12, success=True))
    ...     metrics = shared.update()
    >>> metrics["horizon/boundary"]
    9.0
    """

    def __init__(self, controller: HorizonController) -> None:
        if isinstance(controller, SharedHorizon):
            raise ConfigError("controller is shared already; use it as it is")
        if not is_controller(controller):
            raise ConfigError(f"controller must be a HorizonController, got {controller!r}; pass ElasticHorizon()")
        if hasattr(controller, "horizon_for") and not hasattr(controller, "info_keys"):
            raise ConfigError(
                f"expected a controller with one K for all episodes, or with info_keys, got {controller!r}; name the keys of the "
                "info that its record() reads, () for none"
            )
        k = 0 if hasattr(controller, "horizon_for") else episode_horizon(controller, {}, None)
        folder = Path(tempfile.mkdtemp(prefix="eh-horizon-", dir=_memory_folder()))
        (folder / "k").write_bytes(bytes(16))  # K, and how often the controller was published
        (folder / "journal").touch()
        self._controller: HorizonController | None = controller
        self._each = hasattr(controller, "horizon_for")  # whether each episode has its own K
        self._owner = os.getpid()
        self._heard = 0  # bytes of the journal
        self._news = 0  # outcomes since the last call of `hear`
        self._open(folder)
        self._k[0] = k
        self._remove = weakref.finalize(self, _remove_as_owner, folder, self._owner)
        self._publish(controller)

    @property
    def horizon(self) -> int:
        """The budget K of an episode that starts now, in steps; one memory read."""
        return self._k[0]

    @property
    def horizon_for(self) -> Callable[[Mapping[str, Any], int | None], int]:
        """The controller's ``horizon_for``, for any process. Without one, there is no such attribute."""
        if not self._each:
            raise AttributeError(f"{self!r} has one K for all episodes")
        return functools.partial(episode_horizon, self._published())

    def record(self, outcome: EpisodeOutcome) -> None:
        """Appends the outcome to the journal, from any process and thread.

        Raises:
            ConfigError: `outcome` is not an EpisodeOutcome.
            OSError: The file system is full; the outcome is not counted.
        """
        check_outcome(outcome)
        fields: list[Any] = [
            int(outcome.length),
            int(outcome.horizon),
            bool(outcome.success),
            bool(outcome.truncated),
            outcome.task_id,
        ]
        if keys := getattr(self._published(), "info_keys", ()) if self._each else ():
            if missing := [key for key in keys if key not in outcome.info]:
                raise ConfigError(
                    f"the reset's info has no {missing[0]!r} (it has {sorted(outcome.info)}); choose another key"
                )
            fields.append({key: str(outcome.info[key]) for key in keys})
        body = _encode(fields).encode()
        # O_APPEND and one write: the kernel puts the line at the end as a whole, whoever else is writing. Only SIGKILL at a
        # page boundary can cut it; the newline in front keeps such a stump out of the next writer's line.
        line = b"\n%08x %s\n" % (zlib.crc32(body), body)
        written = os.write(self._journal, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of an outcome fit into {self._folder}; free some space")

    def hear(self) -> int:
        """Hands all outcomes to the controller; returns how many there are since the last `hear`. Only for the owner."""
        controller = self._owned("hear")
        with self._lock:
            self._hear(controller)
            news, self._news = self._news, 0
            return news

    def update(self) -> dict[str, float]:
        """Hands all outcomes to the controller, then moves K once. Only for the owner.

        Raises:
            ConfigError: Called in another process than the owner's, or on a copy.
        """
        controller = self._owned("update")
        with self._lock:
            self._hear(controller)
            metrics = controller.update()
            self._publish(controller)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The controller's state, including every outcome recorded so far. Only for the owner."""
        controller = self._owned("state_dict")
        with self._lock:
            self._hear(controller)
            return controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the state of a controller of the same kind, shared or not. Only for the owner.

        Outcomes that were recorded before belong to the old state and are dropped.
        """
        controller = self._owned("load_state_dict")
        with self._lock:
            self._hear(controller)
            controller.load_state_dict(state)
            self._news = 0
            self._publish(controller)

    def close(self) -> None:
        """Removes the files, if called by the owner. No new process can join then; the others can still read K."""
        self._remove()

    def __enter__(self) -> SharedHorizon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": str(self._folder), "each": self._each}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._controller = None
        self._owner = -1
        self._each = state["each"]
        try:
            self._open(Path(state["folder"]))
            if self._each:
                self._published()  # so that there is one to go on with after the owner's end
        except FileNotFoundError:
            raise _closed(Path(state["folder"])) from None
        self._remove = weakref.finalize(self, _remove_as_owner, self._folder, self._owner)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedHorizon:
        return self

    def __repr__(self) -> str:
        return f"SharedHorizon({self._controller!r})" if self._controller else f"SharedHorizon(at {self._folder})"

    def _open(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # between the owner's threads
        self._seen: tuple[int, HorizonController] | None = None
        with (folder / "k").open("r+b") as file:
            # A memoryview stores 8 aligned bytes at once. struct.pack_into doesn't: it zeroes them first, and a reader that
            # looked in between would give its episode K = 0 (2 % of 3.7 million reads under constant writing).
            self._k = memoryview(mmap.mmap(file.fileno(), 16)).cast("q")
        self._journal = os.open(folder / "journal", os.O_RDWR | os.O_APPEND)
        # Not at exit: a thread that is still playing then may still record.
        weakref.finalize(self, os.close, self._journal).atexit = False

    def _publish(self, controller: HorizonController) -> None:
        """Lets the other processes see the K that holds from now on."""
        if self._each:
            new = self._folder / "controller.new"
            try:
                new.write_bytes(pickle.dumps(controller))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ConfigError(
                    f"{controller!r} can't be pickled for the other processes ({error}); make it with functions of a module"
                ) from error
            new.replace(self._folder / "controller")
            self._k[1] += 1
        self._k[0] = controller.horizon

    def _published(self) -> HorizonController:
        """The controller, or what its owner published last."""
        if self._controller is not None and os.getpid() == self._owner:
            return self._controller
        if self._seen is None or self._seen[0] != self._k[1]:
            number = self._k[1]  # first: the file may be newer than it, and is read again then
            try:
                self._seen = (number, pickle.loads((self._folder / "controller").read_bytes()))
            except FileNotFoundError:  # the owner has closed it
                if self._seen is None:
                    raise _closed(self._folder) from None
        return self._seen[1]

    def _owned(self, method: str) -> HorizonController:
        if self._controller is None or os.getpid() != self._owner:
            raise ConfigError(
                f"{method}() was called on a copy of a SharedHorizon, where K can only be read and outcomes recorded; "
                "call it on the original, in the process that made it"
            )
        return self._controller

    def _hear(self, controller: HorizonController) -> None:
        """Hands every outcome that was appended since the last call to the controller."""
        missing = os.fstat(self._journal).st_size - self._heard  # what comes meanwhile is for the next call
        news = bytearray()
        while len(news) < missing and (chunk := os.pread(self._journal, missing - len(news), self._heard + len(news))):
            news += chunk
        # A line without its end is still being written, or its writer was killed; the next newline tells which.
        end = news.rfind(b"\n") + 1
        for line in bytes(news[:end]).splitlines(keepends=True):
            self._heard += len(line)  # first: an outcome that the controller refuses does not hold up the others
            if (outcome := _parse(line.rstrip(b"\n"))) is not None:
                controller.record(outcome)
                self._news += 1


def _closed(folder: Path) -> ConfigError:
    return ConfigError(f"the SharedHorizon at {folder} is closed; keep its owner alive for as long as others use it")


def _parse(line: bytes) -> EpisodeOutcome | None:
    """The outcome; None for an empty line, and for an incomplete line that a killed writer left."""
    checksum, _, body = line.partition(b" ")
    if not body or checksum != b"%08x" % zlib.crc32(body):
        return None
    length, horizon, success, truncated, task_id, *info = json.loads(body)
    return EpisodeOutcome(length, horizon, success, truncated, task_id, info=info[0] if info else {})


def _memory_folder() -> str | None:
    """The folder of shared memory if the system has one; otherwise None, for the temporary folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _remove_as_owner(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits this finalizer, and must not remove what its parent uses
        shutil.rmtree(folder, ignore_errors=True)
