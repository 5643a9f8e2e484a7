"""The batches of episodes for the updates: played in turn with the training, or ahead of it."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from eh_gym import HorizonController
from harness.chat.chat import ChatFormat
from harness.machine.ranks import Ranks
from harness.rollout.continuous import ContinuousRollout
from harness.rollout.environment import Environments
from harness.rollout.episode_metrics import mean, rollout_metrics
from harness.rollout.rollout import InTurn, Played
from harness.rollout.slots import OnEnd
from harness.rollout.tasks import BatchPlan
from harness.settings.rollout import Rollout
from harness.terminal.interrupts import Interrupts, Stopped
from harness.types.sampler import CacheMetrics, Sampler
from harness.types.trajectory import Trajectory, settle

OnBegin = Callable[[int, int], OnEnd]
"""Called when a batch begins, with its update and this rank's number of episodes. Returns their `OnEnd`."""


@dataclass(kw_only=True)
class Batches:
    """Plays one batch of episodes after another.

    With `max_staleness` 0, playing and training take turns. Otherwise the next `max_staleness` batches may play while
    the policy is trained on a batch. Without a controller, episodes have no limit. `interrupts` stop the playing at
    once.
    """

    plan: BatchPlan
    environments: Environments
    controller: HorizonController | None
    sampler: Sampler
    chat: ChatFormat
    settings: Rollout
    ranks: Ranks
    max_staleness: int
    interrupts: Interrupts

    def __post_init__(self) -> None:
        self._player: InTurn | ContinuousRollout | None = None
        self._begun: dict[int, Future[Played]] = {}  # by update

    def paused(self) -> AbstractContextManager[None]:
        """Holds all episodes in this context, in which weights and K change."""
        return self._open().paused()

    def take(self, update: int, on_begin: OnBegin) -> tuple[list[Trajectory], dict[str, float]]:
        """Waits for the episodes of an update, from all ranks. Returns them and their metrics.

        Raises:
            Stopped: The run was interrupted.
        """
        trajectories, seconds = self._ended(update, on_begin)
        settle(trajectories)
        metrics = rollout_metrics(trajectories, update) | {"time/rollout_s": seconds}
        return trajectories, metrics | self._cache_metrics()

    def prepare(self, update: int, on_begin: OnBegin) -> None:
        """Begins the batch of `update` with the present weights and K, if batches may begin ahead."""
        if self.max_staleness and update < self.plan.updates:
            self._begin_allowed(update, on_begin)

    def close(self) -> None:
        if self._player is not None:
            self._player.close()

    def _open(self) -> InTurn | ContinuousRollout:
        if self._player is None:
            envs = self.environments.open(self.controller)
            play = ContinuousRollout if self.max_staleness else InTurn
            self._player = play(envs, self.sampler, self.chat)
        return self._player

    def _begin_allowed(self, update: int, on_begin: OnBegin) -> None:
        for later in range(update, min(update + max(1, self.max_staleness), self.plan.updates)):
            if later not in self._begun:
                player, episodes = self._open(), self.ranks.share(self.plan.requests(later))
                self._begun[later] = player.begin(episodes, self.settings, on_begin(later, len(episodes)))

    def _ended(self, update: int, on_begin: OnBegin) -> Played:
        """The episodes of all ranks, and the seconds of the slowest one."""
        mine: Played | None = None  # stays None if a signal came; it may have reached this rank alone
        with suppress(KeyboardInterrupt), self.interrupts.at_once():
            self._begin_allowed(update, on_begin)
            mine = self._begun.pop(update).result()
        every = [played for played in self.ranks.gather([mine]) if played is not None]
        if len(every) < self.ranks.size:
            if self._player is not None:
                self._player.envs.interrupt()  # before a checkpoint is written, which may take minutes
            raise Stopped
        return Played([t for played in every for t in played.trajectories], max(played.seconds for played in every))

    def _cache_metrics(self) -> dict[str, float]:
        if not isinstance(self.sampler, CacheMetrics):
            return {}
        every = self.ranks.gather([self.sampler.cache_metrics()])
        return {name: mean([one[name] for one in every]) for name in every[0]}
