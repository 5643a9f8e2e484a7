"""Plays batches of episodes in turn with the training, or one batch ahead of it. `continuous` has a third way to play."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from eh_gym.vector import ThreadVectorEnv
from harness.rollout.rollout import rollout
from harness.rollout.slots import OnEnd
from harness.types.rules import EpisodeRequest, Rules
from harness.types.sampler import Sampler
from harness.types.trajectory import Trajectory

if TYPE_CHECKING:
    from harness.policy.chat import ChatFormat

__all__ = ["BatchPlayer", "Played"]


class Played(NamedTuple):
    """A batch's episodes, in the order of the requests, and the seconds from its beginning to its end."""

    trajectories: list[Trajectory]
    seconds: float


class BatchPlayer:
    """Plays each batch from its beginning to its end under the same weights and the same K.

    Args:
        envs: The slots.
        sampler: Samples the actions.
        chat: Turns texts into ids.
        ahead: Whether a batch plays in a thread, while the policy is trained on the batch before. The caller ensures that one
            batch plays at a time.
    """

    def __init__(self, envs: ThreadVectorEnv, sampler: Sampler, chat: ChatFormat, *, ahead: bool) -> None:
        self._envs, self._sampler, self._chat = envs, sampler, chat
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="eh-rollout") if ahead else None

    def begin(
        self,
        episodes: Sequence[EpisodeRequest],
        rules: Rules,
        on_end: OnEnd,
    ) -> Future[Played]:
        """Begins a batch.

        Args:
            episodes: The episodes.
            rules: What holds for each of them.
            on_end: Called with each trajectory when it ends.
        """
        if self._thread is not None:
            return self._thread.submit(self._play, episodes, rules, on_end)
        played: Future[Played] = Future()
        played.set_result(self._play(episodes, rules, on_end))
        return played

    def paused(self) -> AbstractContextManager[None]:
        """Weights and K change in this context. It does nothing: no episode plays between updates."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Closes the slots, which ends a batch that is still being played, and waits for it."""
        self._envs.close()
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _play(self, episodes: Sequence[EpisodeRequest], rules: Rules, on_end: OnEnd) -> Played:
        start = time.perf_counter()
        trajectories = rollout(self._envs, self._sampler, self._chat, episodes, rules, on_end=on_end)
        return Played(trajectories, time.perf_counter() - start)
