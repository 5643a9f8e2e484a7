"""One K for processes that share only a folder."""

import json
import math
import os
import pickle
import time
from pathlib import Path
from typing import IO

from eh_gym.errors import ConfigError
from eh_gym.horizon.checks import positive_int
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, HorizonFor
from eh_gym.horizon.shared import SharedHorizon, write_whole
from eh_gym.processes import lock, unlock

__all__ = ["FolderHorizon"]

_WAIT_S = 30.0  # for the owner to write the address of its horizon


class FolderHorizon(SharedHorizon):
    """A `SharedHorizon` for all processes that name the same folder.

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

    _held: IO[str] | None = None  # a pickled copy has none

    def __init__(self, folder: str | Path, controller: HorizonController, update_every: int) -> None:
        self._home, self._every = Path(folder), positive_int("update_every", update_every)
        self._home.mkdir(parents=True, exist_ok=True)
        self._counted = 0  # episodes of this run
        self._since = 0  # episodes that no update has counted yet
        self._held = (self._home / "owner.lock").open("a")  # locked until this process ends
        if not lock(self._held):
            self._join()
            return
        try:
            if (state := self._home / "state.json").exists():
                saved = json.loads(state.read_text("utf-8"))
                self._since = saved.pop("episodes_since_update", 0) if isinstance(saved, dict) else 0
                controller.load_state_dict(saved)
            super().__init__(controller)
        except BaseException:
            self._held.close()  # so that the folder is free again
            raise
        write_whole(self._home / "address", pickle.dumps((os.getpid(), self.__getstate__())))

    @property
    def owner(self) -> bool:
        """Whether this process moves K. A fork of the owner does not."""
        return self._owner == os.getpid()

    @property
    def horizon(self) -> int:
        """The K of an episode that starts now, in steps."""
        self._move()
        return super().horizon

    @property
    def horizon_for(self) -> HorizonFor:
        """The controller's ``horizon_for``. Raises AttributeError if all episodes have one K."""
        self._move()
        return super().horizon_for

    def record(self, outcome: EpisodeOutcome) -> None:
        """Tells the owner how an episode ended, from any process and thread."""
        super().record(outcome)
        self._move()

    def close(self) -> None:
        """Lets another process own the folder. Other processes keep the last K."""
        self._move()
        super().close()
        if self._held and not self._held.closed:
            if self.owner:
                unlock(self._held)  # a forked child may hold it, too
            self._held.close()

    def _move(self) -> None:
        if not self.owner:
            return
        with self._owned("record") as controller:
            if self._counted == self._collected:
                return
            self._since += self._collected - self._counted
            self._counted = self._collected
            lines = ""
            while self._since >= self._every:
                self._since -= self._every
                moved = {name: None if math.isnan(value) else value for name, value in controller.update().items()}
                lines += json.dumps({"episodes": self._every, **moved}) + "\n"
                self._publish(controller)
            since = {"episodes_since_update": self._since} if self._since else {}
            write_whole(self._home / "state.json", json.dumps({**controller.state_dict(), **since}).encode())
            if lines:  # after the state: a full disk must not count episodes twice
                with (self._home / "horizon.jsonl").open("a", encoding="utf-8") as log:
                    log.write(lines)

    def _join(self) -> None:
        """Becomes a copy of the owner's controller."""
        give_up = time.monotonic() + _WAIT_S
        while time.monotonic() < give_up:
            try:
                pid, state = pickle.loads((self._home / "address").read_bytes())
                os.kill(pid, 0)  # raises if the address is that of a killed owner
                return self.__setstate__(state)
            except (FileNotFoundError, ProcessLookupError, ConfigError):
                time.sleep(0.05)
        raise ConfigError(
            f"another process owns {self._home} and did not write the address of its K within {_WAIT_S:g} s; "
            "give each run a folder of its own, and each machine too"
        )
