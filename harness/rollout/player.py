"""Two ways to play batches of episodes: in turn with the training, or one batch ahead of it. `continuous` has a third.

A run chooses its way once, in `harness.rollout.batches`, and knows it as a `Player`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from eh_gym.vector import ThreadVectorEnv
from harness.rollout.length_estimates import EpisodeLengths
from harness.rollout.rollout import rollout
from harness.rollout.slots import OnEnd
from harness.types.rules import EpisodeRequest, Rules
from harness.types.sampler import Sampler
from harness.types.trajectory import Trajectory

if TYPE_CHECKING:
    from harness.policy.chat import ChatFormat

__all__ = ["BatchRequest", "Played", "Player", "PlayerAhead", "PlayerInTurn"]


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """One batch to play.

    Attributes:
        episodes: The episodes.
        rules: What holds for each of them.
        lengths: In streaming, the episodes that are expected to be longest start first.
    """

    episodes: Sequence[EpisodeRequest]
    rules: Rules
    lengths: EpisodeLengths


class Played(NamedTuple):
    """A batch's episodes, in the order of the requests, and the seconds from its beginning to its end."""

    trajectories: list[Trajectory]
    seconds: float


class Player(Protocol):
    """A way to play batches.

    Attributes:
        envs: The slots. The player closes them.
    """

    envs: ThreadVectorEnv

    def begin(self, batch: BatchRequest, on_end: OnEnd, *, first: bool = False) -> Future[Played]:
        """Begins a batch.

        Args:
            batch: The batch.
            on_end: Called with each trajectory when it ends.
            first: Whether its episodes go before those of other batches that wait for a slot.
        """
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Weights and K change in this context. Episodes that play between updates wait, and go on afterwards."""
        ...

    def close(self) -> None:
        """Closes the slots, which ends a batch that is still being played, and waits for it."""
        ...


class PlayerInTurn:
    """Plays a batch when it is asked for, so that playing and training take turns.

    Args:
        envs: The slots.
        sampler: Samples the actions.
        chat: Turns texts into ids.
    """

    def __init__(self, envs: ThreadVectorEnv, sampler: Sampler, chat: ChatFormat) -> None:
        self.envs, self._sampler, self._chat = envs, sampler, chat

    def begin(self, batch: BatchRequest, on_end: OnEnd, *, first: bool = False) -> Future[Played]:
        """Plays a batch to its end; see `Player.begin`. No other batch can wait for a slot."""
        played: Future[Played] = Future()
        played.set_result(self._play(batch, on_end))
        return played

    def paused(self) -> AbstractContextManager[None]:
        """Does nothing: no episode plays between updates."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Closes the slots."""
        self.envs.close()

    def _play(self, batch: BatchRequest, on_end: OnEnd) -> Played:
        start = time.perf_counter()
        trajectories = rollout(
            self.envs,
            self._sampler,
            self._chat,
            batch.episodes,
            batch.rules,
            lengths=batch.lengths,
            on_end=on_end,
        )
        return Played(trajectories, time.perf_counter() - start)


class PlayerAhead(PlayerInTurn):
    """Plays a batch in a thread, while the policy is trained on the batch before.

    One batch plays at a time, from its beginning to its end under the same weights and the same K. The caller ensures this.
    """

    def __init__(self, envs: ThreadVectorEnv, sampler: Sampler, chat: ChatFormat) -> None:
        super().__init__(envs, sampler, chat)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="eh-rollout")

    def begin(self, batch: BatchRequest, on_end: OnEnd, *, first: bool = False) -> Future[Played]:
        """Begins a batch and returns at once; see `Player.begin`."""
        return self._thread.submit(self._play, batch, on_end)

    def close(self) -> None:
        """Closes the slots, which ends a batch that is still being played, and waits for it."""
        super().close()
        self._thread.shutdown(wait=True)
