"""A rollout that never stops: a thread plays batches of episodes without a barrier between them.

While a batch's last episodes play, the next batch takes the free slots. The sampler's weights change while episodes
run. A request then goes on under the new weights, and each token keeps the version that sampled it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

from eh_gym.vector import ThreadVectorEnv
from harness.rollout.ahead import CallsAhead
from harness.rollout.rollout import Answers, Played, converse_with, play_streaming
from harness.rollout.slots import OnEnd, Slots
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sampler
from harness.types.trajectory import Trajectory

if TYPE_CHECKING:
    from harness.chat.chat import ChatFormat


class ContinuousRollout:
    """Plays batches as `play_streaming` does, in a thread, which alone uses the sampler and the slots."""

    def __init__(self, envs: ThreadVectorEnv, sampler: Sampler, chat: ChatFormat) -> None:
        self.envs, self._player = envs, CallsAhead(sampler, envs.num_envs)
        self._slots = Slots(envs, self._player, converse_with(sampler, chat))
        self._calls: Answers = SimpleQueue()
        self._playing: set[Future[Played]] = set()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="eh-rollout", daemon=True)
        self._thread.start()

    def begin(self, episodes: Sequence[EpisodeRequest], settings: Rollout, on_end: OnEnd) -> Future[Played]:
        """Adds a batch. Each episode gets the K of the moment in which it begins.

        Returns the batch, once all of its episodes have ended, or the error of the thread.
        """
        start = time.perf_counter()
        all_played: Future[Played] = Future()
        played: dict[int, Trajectory] = {}

        def keep(index: int, trajectory: Trajectory) -> None:
            played[index] = trajectory
            on_end(trajectory)
            if len(played) == len(episodes):
                self._playing.discard(all_played)
                trajectories = [played[i] for i in range(len(episodes))]
                all_played.set_result(Played(trajectories, time.perf_counter() - start))

        def add() -> None:
            if self._error is not None:
                all_played.set_exception(self._error)
            elif not episodes:
                all_played.set_result(Played([], time.perf_counter() - start))
            else:
                self._playing.add(all_played)
                self._slots.add(episodes, settings, keep)

        self._calls.put(add)
        return all_played

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops all requests in this context. Environments may still answer."""
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
        """Closes the slots, which ends a batch that is still being played, and ends the thread."""
        self.envs.close()
        self._closed = True
        self._calls.put(lambda: None)
        self._thread.join()

    def _run(self) -> None:
        try:
            play_streaming(self._slots, self._player, self._calls, goes_on=lambda: not self._closed)
        except BaseException as error:  # whoever waits for a batch gets it, now or later
            self._error = error
            for batch in self._playing:
                batch.set_exception(error)
            while not self._closed:
                with contextlib.suppress(Exception):  # a late answer of an environment
                    self._calls.get()()
