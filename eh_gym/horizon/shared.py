"""One controller that many processes of a machine share.

The process that makes a SharedHorizon owns it. A copy in another process (forked or pickled) reads K from a
memory-mapped file and appends each outcome to a journal with a single write. If each episode has its own K, the copies
read the controller from a file. Processes share no lock, so a killed one leaves nothing locked.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import pickle
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import (
    EpisodeOutcome,
    HorizonController,
    HorizonFor,
    ReadsInfo,
    check_controller,
    check_outcome,
    episode_horizon,
    kind_in,
    per_episode_rule,
)


class SharedHorizon:
    """Lets environments in other processes read K and record outcomes.

    Once `record` has returned, the outcome is counted exactly once, at the owner's next `update` or `state_dict`, even
    if its process is killed. Outcomes of one process keep their order.

    A controller with ``horizon_for`` must have ``info_keys`` (see `ReadsInfo`) and be picklable, as `TaskHorizon` and
    `KeyedHorizon` are. Only these keys of an outcome's info are handed over, as texts.

    The journal takes about 35 bytes per outcome plus the task id. It only grows. It is in ``/dev/shm``, or else in the
    temporary folder, until `close` or the end of the owner. If the owner is killed, a folder ``eh-horizon-*`` stays.

    Only the owner's `update` moves K. With environments in subprocesses, call it between two rollouts (in
    Stable-Baselines3 from a callback's ``_on_rollout_end``), and leave ``update_every`` of `ElasticTimeLimit` at None.

    Args:
        controller: From now on, do not call its `record` or `update` directly.

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
        check_controller(controller)
        self._keys: tuple[str, ...] | None = None  # of the info that is handed over; None if all episodes have one K
        if per_episode_rule(controller) is None:
            episode_horizon(controller, {}, None)  # raises if K is not a number of steps
        elif isinstance(controller, ReadsInfo):
            self._keys = tuple(controller.info_keys)
        else:
            raise ConfigError(
                f"expected a controller with one K for all episodes, or with info_keys, got {controller!r}; name the "
                "keys of the info that its record() reads, () for none"
            )
        self._controller: HorizonController | None = controller
        self._owner = os.getpid()
        self._read = 0  # bytes of the journal
        self._collected = 0  # outcomes
        folder = Path(
            tempfile.mkdtemp(prefix="eh-horizon-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        )
        weakref.finalize(self, _remove_as_owner, folder, self._owner)
        (folder / "k").write_bytes(bytes(8))
        (folder / "journal").touch()
        self._open(folder)
        self._publish(controller)

    @property
    def horizon(self) -> int:
        """The K of an episode that starts now, in steps."""
        return self._k[0]

    @property
    def horizon_for(self) -> HorizonFor:
        """The controller's ``horizon_for``. Raises AttributeError if all episodes have one K."""
        if self._keys is None:
            raise AttributeError("this controller has one K for all episodes")  # without a repr, which is slow
        if os.getpid() != self._owner:
            with contextlib.suppress(FileNotFoundError):  # the owner has closed it; the last controller stays
                self._controller = pickle.loads((self._folder / "controller").read_bytes())
        assert self._controller is not None
        return functools.partial(episode_horizon, self._controller)

    def record(self, outcome: EpisodeOutcome) -> None:
        """Appends the outcome to the journal, from any process and thread.

        Raises:
            ConfigError: `outcome` is not an EpisodeOutcome.
            OSError: The file system is full; the outcome is not counted.
        """
        check_outcome(outcome)
        info = {key: kind_in(outcome.info, key) for key in self._keys or ()}
        texts = json.dumps([outcome.task_id, info]) if info or outcome.task_id is not None else "[null, {}]"
        numbers = outcome.length, outcome.horizon, outcome.success, outcome.truncated
        # With O_APPEND and one write, only SIGKILL at a page boundary can cut a line. The newline in front separates it
        # from the line before, which may be cut.
        line = b"\n[%d, %d, %d, %d, %s]\n" % (*numbers, texts.encode())
        written = os.write(self._journal, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of an outcome fit into {self._folder}; free some space")

    def update(self) -> dict[str, float]:
        """Hands all outcomes to the controller, then moves K once. Only for the owner.

        Raises:
            ConfigError: Called in another process than the owner's, or on a copy.
        """
        with self._owned("update") as controller:
            metrics = controller.update()
            self._publish(controller)
            return metrics

    def state_dict(self) -> dict[str, Any]:
        """The controller's state, including every outcome recorded so far. Only for the owner."""
        with self._owned("state_dict") as controller:
            return controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the state of a controller of the same kind, shared or not. Only for the owner.

        Outcomes that were recorded before belong to the old state and are dropped.
        """
        with self._owned("load_state_dict") as controller:
            controller.load_state_dict(state)
            self._publish(controller)

    def close(self) -> None:
        """Removes the files, if called by the owner. Copies can still read K, but no new one can be made."""
        _remove_as_owner(self._folder, self._owner)

    def __enter__(self) -> SharedHorizon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self._folder, "keys": self._keys}

    def __setstate__(self, state: dict[str, Any]) -> None:
        folder, self._keys = state["folder"], state["keys"]
        self._controller = None
        self._owner = -1
        try:
            self._open(folder)
            if self._keys is not None:
                self._controller = pickle.loads((folder / "controller").read_bytes())
        except FileNotFoundError:
            raise ConfigError(
                f"the SharedHorizon at {folder} is closed; keep its owner alive for as long as others use it"
            ) from None

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedHorizon:
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr(self._controller) if self._controller else f'at {self._folder}'})"

    def _open(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # between the owner's threads
        with (folder / "k").open("r+b") as file:
            # A memoryview stores 8 aligned bytes at once; struct.pack_into zeroes them first, so that readers see 0.
            self._k = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
        self._journal = os.open(folder / "journal", os.O_RDWR | os.O_APPEND)
        # Not at exit, because a thread may still record then.
        weakref.finalize(self, os.close, self._journal).atexit = False

    def _publish(self, controller: HorizonController) -> None:
        if self._keys is not None:
            try:
                write_whole(self._folder / "controller", pickle.dumps(controller))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ConfigError(
                    f"{controller!r} can't be pickled for the other processes ({error}); make it with functions of a "
                    "module"
                ) from error
        self._k[0] = controller.horizon

    @contextlib.contextmanager
    def _owned(self, method: str) -> Iterator[HorizonController]:
        """The owner's controller, locked, with every outcome so far."""
        if self._controller is None or os.getpid() != self._owner:
            raise ConfigError(
                f"{method}() was called on a copy of a SharedHorizon, where K can only be read and outcomes recorded; "
                "call it on the original, in the process that made it"
            )
        with self._lock:
            news = os.pread(self._journal, os.fstat(self._journal).st_size - self._read, self._read)
            # A line without an end may still be being written.
            for line in news[: news.rfind(b"\n") + 1].splitlines(keepends=True):
                self._read += len(line)  # first, so that a refused outcome is not read again
                try:
                    length, horizon, success, truncated, (task_id, info) = json.loads(line)
                except ValueError:  # an empty line, or the stump of a killed writer
                    continue
                self._controller.record(EpisodeOutcome(length, horizon, success == 1, truncated == 1, task_id, info))
                self._collected += 1
            yield self._controller


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file at once, because other processes may be reading it."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def _remove_as_owner(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the finalizer
        shutil.rmtree(folder, ignore_errors=True)
