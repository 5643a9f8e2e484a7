"""One K for processes that share only a folder."""

from __future__ import annotations

import json
import math
import os
import pickle
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from eh_gym.horizon.checks import positive_int
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, episode_horizon
from eh_gym.horizon.shared import SharedHorizon
from eh_gym.processes import lock, unlock

__all__ = ["FolderHorizon"]

_WAIT_S = 30.0  # for the owner to write the address of its horizon


class FolderHorizon:
    """A controller that is shared by all processes that name the same folder.

    The first process owns K and moves it once for every `update_every` episodes of all processes, when it starts or
    ends an episode itself. The other processes read K and record. If the owner ends, their K stays the same. The owner
    writes ``state.json``, from which a later run continues, and ``horizon.jsonl`` with the metrics of each update.

    Args:
        folder: A folder on this machine, made if it is missing.
        controller: Decides K. Only the owner uses it.
        update_every: The number of episodes between two updates of K.

    Raises:
        ConfigError: Another process owns the folder, but its K was not found in time.
        StateError: ``state.json`` belongs to another kind of controller.
    """

    def __init__(self, folder: str | Path, controller: HorizonController, update_every: int) -> None:
        self._folder, self._every = Path(folder), positive_int("update_every", update_every)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._turn = threading.Lock()
        self._pid = 0  # set in the owner only
        self._counted = 0  # episodes of this run
        self._since = 0  # episodes that no update has counted yet
        self._lock = (self._folder / "owner.lock").open("a")  # held until this process ends
        if not lock(self._lock):
            self._shared = self._join()
            return
        if (state := self._folder / "state.json").exists():
            saved = json.loads(state.read_text("utf-8"))
            self._since = saved.pop("episodes_since_update", 0) if isinstance(saved, dict) else 0
            try:
                controller.load_state_dict(saved)
            except BaseException:
                self._lock.close()  # so that the folder is free again
                raise
        self._pid, self._shared = os.getpid(), SharedHorizon(controller)
        self._write("address", pickle.dumps((self._pid, self._shared)))

    @property
    def owner(self) -> bool:
        """Whether this process moves K. A fork of the owner does not."""
        return self._pid == os.getpid()

    @property
    def horizon(self) -> int:
        """The K of an episode that starts now, in steps."""
        self._move()
        return self._shared.horizon

    def horizon_for(self, info: Mapping[str, Any]) -> int:
        """The K of an episode that starts now, in steps, by the info of its reset."""
        self._move()
        return episode_horizon(self._shared, info, None)

    def record(self, outcome: EpisodeOutcome) -> None:
        """Tells the owner how an episode ended, from any process and thread."""
        self._shared.record(outcome)
        self._move()

    def close(self) -> None:
        """Lets another process own the folder. Other processes keep the last K."""
        self._move()
        self._shared.close()
        if not self._lock.closed:
            if self.owner:
                unlock(self._lock)  # a forked child may hold it, too
            self._lock.close()

    def _move(self) -> None:
        if not self.owner:
            return
        with self._turn:
            before, self._counted = self._counted, self._shared.collect()
            if self._counted == before:
                return
            self._since += self._counted - before
            lines = ""
            while self._since >= self._every:
                self._since -= self._every
                moved = {name: None if math.isnan(value) else value for name, value in self._shared.update().items()}
                lines += json.dumps({"episodes": self._every, **moved}) + "\n"
            since = {"episodes_since_update": self._since} if self._since else {}
            self._write("state.json", json.dumps({**self._shared.state_dict(), **since}).encode())
            if lines:  # after the state: a full disk must not count episodes twice
                with (self._folder / "horizon.jsonl").open("a", encoding="utf-8") as log:
                    log.write(lines)

    def _write(self, name: str, content: bytes) -> None:
        # At once, because other processes may be reading.
        new = self._folder / f"{name}.new"
        new.write_bytes(content)
        new.replace(self._folder / name)

    def _join(self) -> SharedHorizon:
        give_up = time.monotonic() + _WAIT_S
        while time.monotonic() < give_up:
            try:
                pid, shared = pickle.loads((self._folder / "address").read_bytes())
                os.kill(pid, 0)  # raises if the address is that of a killed owner
                return shared  # type: ignore[no-any-return]
            except (FileNotFoundError, ProcessLookupError, ConfigError):
                time.sleep(0.05)
        raise ConfigError(
            f"another process owns {self._folder} and did not write the address of its K within {_WAIT_S:g} s; "
            "give each run a folder of its own, and each machine too"
        )
