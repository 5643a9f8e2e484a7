"""A rollout that never stops: batches of episodes play in a thread of their own, without a barrier between two batches.

The slots of a batch's last episodes are not idle: the next batch's episodes play in the others. The weights of the sampler change
while episodes run. Then a request goes on under the new weights, and each of its tokens knows the version that sampled it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

from eh_gym.vector import ThreadVectorEnv
from harness.rollout.slots import OnEnd, Slots
from harness.rollout.streaming import Answers, play_streaming
from harness.types.rules import EpisodeRequest, Rules
from harness.types.sampler import Sampler
from harness.types.trajectory import Trajectory

if TYPE_CHECKING:
    from harness.policy.chat import ChatFormat

__all__ = ["ContinuousRollout"]


class ContinuousRollout:
    """Plays batches in its own thread, as `play_streaming` does. Only that thread uses the sampler and the slots.

    Args:
        envs: The slots.
        sampler: Samples the actions.
        chat: Turns texts into ids.
    """

    def __init__(self, envs: ThreadVectorEnv, sampler: Sampler, chat: ChatFormat) -> None:
        self._slots, self._sampler = Slots(envs, sampler, chat), sampler
        self._calls: Answers = SimpleQueue()
        self._playing: set[Future[list[Trajectory]]] = set()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="eh-rollout", daemon=True)
        self._thread.start()

    def begin(
        self,
        requests: Sequence[EpisodeRequest],
        order: Sequence[int],
        rules: Rules,
        on_end: OnEnd,
        *,
        at_once: int | None,
        first: bool = False,
    ) -> Future[list[Trajectory]]:
        """Adds a batch. The arguments are those of `Slots.add`, but `on_end` gets the trajectory alone.

        Returns:
            The trajectories in the order of the requests, once all have ended; or what went wrong in the thread.
        """
        batch: Future[list[Trajectory]] = Future()
        played: dict[int, Trajectory] = {}

        def keep(index: int, trajectory: Trajectory) -> None:
            played[index] = trajectory
            on_end(trajectory)
            if len(played) == len(requests):
                self._playing.discard(batch)
                batch.set_result([played[i] for i in range(len(requests))])

        def add() -> None:
            if self._error is not None:
                batch.set_exception(self._error)
            elif not requests:
                batch.set_result([])
            else:
                self._playing.add(batch)
                self._slots.add(requests, order, rules, keep, at_once=at_once, first=first)

        self._calls.put(add)
        return batch

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No request runs on while the caller is in this context. Environments may still answer."""
        stopped, go_on = threading.Event(), threading.Event()

        def stop() -> None:
            stopped.set()
            go_on.wait()

        self._calls.put(stop)
        try:
            stopped.wait()
            yield
        finally:
            go_on.set()

    def close(self) -> None:
        """Ends the thread. The environments must have been closed before, so that no episode goes on."""
        self._closed = True
        self._calls.put(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        try:
            play_streaming(self._slots, self._sampler, self._calls, goes_on=lambda: not self._closed)
        except BaseException as error:  # whoever waits for a batch gets it, now or later
            self._error = error
            for batch in self._playing:
                batch.set_exception(error)
            while not self._closed:
                with contextlib.suppress(Exception):  # a late answer of an environment
                    self._calls.get()()
