"""Batches that are played in turn with the training, under one policy and one K."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from eh_gym.vector import ThreadVectorEnv
from harness.rollout.rollout import rollout
from harness.rollout.slots import OnEnd
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sampler
from harness.types.trajectory import Trajectory

if TYPE_CHECKING:
    from harness.chat.chat import ChatFormat


class Played(NamedTuple):
    """A batch's episodes, in the order of the requests, and the seconds from its beginning to its end."""

    trajectories: list[Trajectory]
    seconds: float


class InTurn:
    """Plays each batch from its beginning to its end, in the caller's thread."""

    def __init__(self, envs: ThreadVectorEnv, sampler: Sampler, chat: ChatFormat) -> None:
        self.envs, self._sampler, self._chat = envs, sampler, chat

    def begin(self, episodes: Sequence[EpisodeRequest], settings: Rollout, on_end: OnEnd) -> Future[Played]:
        """Plays a batch. The future that it returns is done."""
        start = time.perf_counter()
        trajectories = rollout(self.envs, self._sampler, self._chat, episodes, settings, on_end=on_end)
        played: Future[Played] = Future()
        played.set_result(Played(trajectories, time.perf_counter() - start))
        return played

    def paused(self) -> AbstractContextManager[None]:
        """Does nothing, because no episode plays between updates."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Closes the slots."""
        self.envs.close()
