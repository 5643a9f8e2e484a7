"""One controller, seen from many processes.

The process that makes a SharedHorizon owns it: only there K moves. A copy in another process (by fork, or by pickling
under spawn and forkserver) reads K from a memory-mapped file and appends each outcome to a journal with a single
write. No lock is taken anywhere, so a reader that is killed at any moment leaves nothing locked and nothing half
written. Left out: other machines.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import tempfile
import threading
import weakref
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController

__all__ = ["SharedHorizon"]

_K = struct.Struct("=q")  # aligned and 8 bytes: read and written in one memory access


class SharedHorizon:
    """Lets environments in other processes read K and record outcomes.

    An outcome whose `record` has returned, in any process, is counted exactly once, at the owner's next `update` or
    `state_dict`, also if that process is killed right after. The journal takes about 100 bytes an outcome (100 MB in a
    million episodes) in shared memory, or where there is none in the temporary folder, and goes when the owner closes.

    Args:
        controller: The controller that decides. Nobody else may call its `record` or `update` from now on.

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
        folder = Path(tempfile.mkdtemp(prefix="eh-horizon-", dir=_memory_folder()))
        (folder / "k").write_bytes(_K.pack(controller.horizon))
        (folder / "journal").touch()
        self._controller: HorizonController | None = controller
        self._owner = os.getpid()
        self._offset = 0
        self._open(folder)
        self._remove = weakref.finalize(self, _remove_as_owner, folder, self._owner)

    @property
    def horizon(self) -> int:
        """The budget K of an episode that starts now, in steps; one memory read."""
        return int(_K.unpack_from(self._map)[0])

    def record(self, outcome: EpisodeOutcome) -> None:
        """Appends the outcome to the journal, from any process and thread."""
        body = json.dumps(asdict(outcome), separators=(",", ":")).encode()
        line = b"%08x %s\n" % (zlib.crc32(body), body)
        # O_APPEND and one write: the kernel puts the whole line at the end, whoever else is writing.
        written = os.write(self._journal, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of an outcome fit into {self._folder}; free some space")

    def update(self) -> dict[str, float]:
        """Hears all outcomes, then moves K once; in the owner only.

        Raises:
            ConfigError: Called in another process than the owner's.
        """
        controller = self._owned("update")
        with self._lock:
            self._hear(controller)
            metrics = controller.update()
            _K.pack_into(self._map, 0, controller.horizon)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The controller's state, every outcome recorded so far included; in the owner only."""
        controller = self._owned("state_dict")
        with self._lock:
            self._hear(controller)
            return controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from the state of a controller of the same kind; in the owner only."""
        controller = self._owned("load_state_dict")
        with self._lock:
            self._hear(controller)
            controller.load_state_dict(state)
            _K.pack_into(self._map, 0, controller.horizon)

    def close(self) -> None:
        """Removes the files, in the owner; elsewhere nothing. Copies in other processes keep the last K."""
        self._remove()

    def __enter__(self) -> SharedHorizon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": str(self._folder)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        folder = Path(state["folder"])
        if not (folder / "journal").exists():
            raise ConfigError(
                f"the SharedHorizon at {folder} is closed; keep its owner alive for as long as others use it"
            )
        self._controller = None
        self._owner = -1
        self._open(folder)
        self._remove = weakref.finalize(self, _remove_as_owner, folder, -1)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedHorizon:
        return self

    def __repr__(self) -> str:
        return f"SharedHorizon({self._controller!r})" if self._controller else f"SharedHorizon(at {self._folder})"

    def _open(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._journal = os.open(folder / "journal", os.O_RDWR | os.O_APPEND)
        with (folder / "k").open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _K.size)
        weakref.finalize(self, os.close, self._journal)

    def _owned(self, method: str) -> HorizonController:
        if self._controller is None or os.getpid() != self._owner:
            raise ConfigError(
                f"{method}() belongs to the process that made the SharedHorizon; here K can be read and outcomes recorded"
            )
        return self._controller

    def _hear(self, controller: HorizonController) -> None:
        """Hands on every outcome that was appended since the last time."""
        with (self._folder / "journal").open("rb") as file:
            file.seek(self._offset)
            news = file.read()
        # A line without its end is being written this very moment; it is heard next time.
        whole, _, _ = news.rpartition(b"\n")
        if not whole:
            return
        self._offset += len(whole) + 1
        for line in whole.split(b"\n"):
            checksum, _, body = line.partition(b" ")
            if int(checksum, 16) != zlib.crc32(body):
                raise OSError(f"the journal in {self._folder} was damaged by somebody else; make a new SharedHorizon")
            controller.record(EpisodeOutcome(**json.loads(body)))


def _memory_folder() -> str | None:
    """Shared memory where the system has it as a folder; else None, the temporary folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _remove_as_owner(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits this finalizer, and must not remove what its parent uses
        shutil.rmtree(folder, ignore_errors=True)
