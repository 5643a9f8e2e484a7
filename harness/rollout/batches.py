"""The batches of episodes that the updates train on: each is played when it is needed, or begun ahead of that."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from eh_gym import HorizonController
from eh_gym.errors import StateError, WorkerError
from eh_gym.vector import ThreadVectorEnv
from harness.policy.chat import ChatFormat
from harness.policy.ranks import Ranks
from harness.rollout.continuous import ContinuousRollout
from harness.rollout.environment import Environments
from harness.rollout.episode_metrics import mean, rollout_metrics
from harness.rollout.groups import TaskSuccess, group_sizes
from harness.rollout.length_estimates import EpisodeLengths, longest_first
from harness.rollout.rollout import rollout
from harness.rollout.slots import OnEnd, announce
from harness.rollout.tasks import TaskStream
from harness.types.rules import EpisodeRequest, Rules
from harness.types.sampler import Sampler
from harness.types.seeding import derive_seed
from harness.types.trajectory import Trajectory

__all__ = ["BatchPlan", "Batches", "useful_groups"]

_Played = tuple[list[Trajectory], float]
"""A batch's episodes, and the seconds that they took."""

OnBegin = Callable[[int, int], OnEnd]

_LOST_BATCHES = 3  # if so many batches in a row have no finished episode, the environment will not recover by itself


@dataclass(frozen=True)
class BatchPlan:
    """Which episodes each update has.

    Attributes:
        stream: The tasks of each update.
        group_size: The number of episodes per task.
        updates: The number of updates; no batch is begun beyond the last one.
        seed: The run's seed. Every episode derives its own from it and from its place.
        dynamic_sampling: How many times groups whose rewards are all equal are replaced by groups of other tasks.
        success: How likely each task is solved, which the next two need.
        adaptive_groups: Whether tasks in the middle get more episodes than the others; their mean is `group_size`.
        curriculum: Each task is the one of so many candidates whose outcome is least certain; 1 chooses nothing.
    """

    stream: TaskStream
    group_size: int
    updates: int
    seed: int
    dynamic_sampling: int = 0
    success: TaskSuccess | None = None
    adaptive_groups: bool = False
    curriculum: int = 1

    def requests(self, update: int) -> list[EpisodeRequest]:
        """The episodes of one update, group by group."""
        tasks = self.stream.batch(update)
        if self.success and self.curriculum > 1:
            tasks = [self.success.least_certain(some) for some in self.stream.candidates(update, self.curriculum)]
        sizes = [self.group_size] * len(tasks)
        if self.success and self.adaptive_groups:
            sizes = group_sizes([self.success.expected(task) for task in tasks], self.group_size * len(tasks))
        return self._requests(update, dict(enumerate(tasks)), sizes)

    def observe(self, update: int, trajectories: Sequence[Trajectory]) -> None:
        """Counts the successes of an update's episodes, if they count. The arguments are those of `replacements`."""
        if self.success:
            offered = self.stream.candidates(update, self.curriculum) if self.curriculum > 1 else []
            self.success.observe(trajectories, [task for some in offered for task in some])

    def replacements(self, update: int, trajectories: Sequence[Trajectory]) -> list[EpisodeRequest]:
        """One more group for each that the update lacks, each of another task.

        Args:
            update: The index of the update.
            trajectories: Its episodes so far.
        """
        begun = 1 + max((t.group for t in trajectories), default=self.stream.per_update - 1)
        missing = self.stream.per_update - useful_groups(trajectories)
        spare = begun - self.stream.per_update
        own = {t.task_id for t in trajectories if t.group < self.stream.per_update}
        tasks = {begun + i: self.stream.spare(update, spare + i, own) for i in range(missing)}
        return self._requests(update, tasks, [self.group_size] * missing)

    def _requests(self, update: int, tasks: Mapping[int, str], sizes: Sequence[int]) -> list[EpisodeRequest]:
        return [
            EpisodeRequest(task_id, group, derive_seed(self.seed, "episode", update, group, member))
            for (group, task_id), size in zip(tasks.items(), sizes, strict=True)
            for member in range(size)
        ]


def useful_groups(trajectories: Sequence[Trajectory]) -> int:
    """The number of groups with at least two different rewards: only these have advantages other than 0."""
    rewards: dict[int, set[float]] = {}
    for t in trajectories:
        if t.end != "environment-error":
            rewards.setdefault(t.group, set()).add(t.reward)
    return sum(len(found) > 1 for found in rewards.values())


class Batches:
    """Plays one batch of episodes after another.

    While the policy is trained on a batch, the next `max_staleness` batches may be played. One is played in a thread, from its
    beginning to its end under the weights and the K with which it began. With more, `ContinuousRollout` plays them.

    Args:
        plan: Which episodes each batch has.
        environments: How the slots are made. They are made when the first batch is played.
        controller: The horizon of the episodes; None for no limit.
        sampler: Samples the actions.
        chat: Turns texts into ids.
        rules: What holds for every episode.
        ranks: The processes that share the episodes.
        max_staleness: How many updates a batch may begin ahead of its own.
        updates_at: Returns the number of policy updates behind a version of the sampler.
    """

    def __init__(
        self,
        plan: BatchPlan,
        environments: Environments,
        controller: HorizonController | None,
        sampler: Sampler,
        chat: ChatFormat,
        rules: Rules,
        *,
        ranks: Ranks,
        max_staleness: int,
        updates_at: Callable[[int], int],
    ) -> None:
        self._plan, self._environments, self._controller = plan, environments, controller
        self._sampler, self._chat, self._rules = sampler, chat, rules
        self._ranks, self._updates_at = ranks, updates_at
        self._max_staleness = max_staleness
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="eh-rollout") if max_staleness == 1 else None
        self._begun: dict[int, Future[_Played]] = {}  # by update
        self._lengths = EpisodeLengths()
        self._lost = 0  # batches in a row without a finished episode

    @functools.cached_property
    def _envs(self) -> ThreadVectorEnv:
        return self._environments.open(self._controller)

    @functools.cached_property
    def _continuous(self) -> ContinuousRollout:
        return ContinuousRollout(self._envs, self._sampler, self._chat)

    def paused(self) -> AbstractContextManager[None]:
        """Weights and K change in this context. Episodes that play between updates wait, and go on afterwards."""
        return self._continuous.paused() if "_continuous" in vars(self) else contextlib.nullcontext()

    def take(self, update: int, on_begin: OnBegin) -> tuple[list[Trajectory], dict[str, float]]:
        """Returns all ranks' episodes of an update, and their metrics, once they have ended.

        Args:
            update: The index of the update.
            on_begin: Called when a batch begins, with its update and this rank's number of episodes. It returns what is
                called with each trajectory that ends.

        Raises:
            WorkerError: No episode of three batches in a row was finished, because the environment failed.
        """
        self._begin_allowed(update, on_begin)
        trajectories, seconds = self._ended(self._begun.pop(update))
        first = len(trajectories)
        for _ in range(self._plan.dynamic_sampling):
            requests = self._plan.replacements(update, trajectories)
            if not requests:
                break
            played, more = self._ended(self._begin(update, requests, on_begin, first=True))
            trajectories, seconds = trajectories + played, seconds + more
        metrics = rollout_metrics(trajectories, update) | {"time/rollout_s": seconds}
        if self._plan.dynamic_sampling or self._plan.success:
            metrics["rollout/useful_groups"] = float(useful_groups(trajectories))
        if self._plan.dynamic_sampling:
            metrics["tokens/replacements"] = float(
                sum(t.tokens for t in trajectories[first:] if t.end != "environment-error")  # as in tokens/update
            )
        self._lost = 0 if metrics["rollout/episodes"] else self._lost + 1
        if self._lost == _LOST_BATCHES:
            raise WorkerError(
                f"every episode of {self._lost} updates, one after another, ended with an environment error, the last: "
                f"{trajectories[-1].error}; fix the environment, then continue the run with --resume"
            )
        self._lengths.observe(trajectories)
        if self._plan.success:
            metrics["rollout/largest_group"] = float(max(Counter(t.group for t in trajectories).values()))
            self._plan.observe(update, trajectories)
        return trajectories, metrics | self._cache_metrics()

    def prepare(self, update: int, on_begin: OnBegin) -> None:
        """Uses the time in which the policy is trained for the batch of `update`.

        If batches may begin ahead, it begins now, with the sampler's present weights and the present K. Otherwise environments
        that can prepare an episode are told its task. The arguments are those of `take`.
        """
        if update >= self._plan.updates:
            return
        if self._max_staleness:
            self._begin_allowed(update, on_begin)
        else:
            announce(self._envs, [request.task_id for request in self._ranks.share(self._plan.requests(update))])

    def close(self) -> None:
        """Closes the environments, which ends a batch that is still being played, and waits for it."""
        if "_envs" in vars(self):
            self._envs.close()
        if "_continuous" in vars(self):
            self._continuous.close()
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the lengths of the tasks' episodes so far, and their successes if they count; JSON values."""
        success = {"success": self._plan.success.state_dict()} if self._plan.success else {}
        return self._lengths.state_dict() | success

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned.

        Raises:
            StateError: The run that is resumed had no `BatchPlan.success`.
        """
        self._lengths.load_state_dict(state)
        if self._plan.success:
            if "success" not in state:
                raise StateError(
                    "the run had neither --adaptive-groups nor --curriculum when it was saved: restore its config.json"
                )
            self._plan.success.load_state_dict(state["success"])

    def _begin_allowed(self, update: int, on_begin: OnBegin) -> None:
        """Begins the batch of `update`, and those that may begin before `update` has been trained on."""
        for later in range(update, min(update + max(1, self._max_staleness), self._plan.updates)):
            if later not in self._begun:
                self._begun[later] = self._begin(later, self._plan.requests(later), on_begin)

    def _ended(self, batch: Future[_Played]) -> _Played:
        """All ranks' episodes of a batch, and the seconds of the rank that took longest."""
        mine, seconds = batch.result()
        for trajectory in mine:
            trajectory.versions = [self._updates_at(version) for version in trajectory.versions]
        return self._ranks.gather(mine), max(self._ranks.gather([seconds]))

    def _begin(
        self, update: int, of_all_ranks: Sequence[EpisodeRequest], on_begin: OnBegin, *, first: bool = False
    ) -> Future[_Played]:
        """Begins a batch. With `first` its episodes go before those of other batches that wait for a slot."""
        envs = self._envs  # made in the caller's thread, so that `close` sees them
        requests = self._ranks.share(of_all_ranks)
        on_end = on_begin(update, len(requests))
        if self._max_staleness > 1:
            return self._begin_continuous(requests, on_end, first=first)
        if self._thread is not None:
            return self._thread.submit(self._play, envs, requests, on_end)
        played: Future[_Played] = Future()
        played.set_result(self._play(envs, requests, on_end))
        return played

    def _play(self, envs: ThreadVectorEnv, requests: Sequence[EpisodeRequest], on_end: OnEnd) -> _Played:
        """This rank's episodes, at the present K and with the sampler's present weights; and the seconds that they took."""
        start = time.perf_counter()
        trajectories = rollout(
            envs,
            self._sampler,
            self._chat,
            requests,
            self._present_rules(),
            lengths=self._lengths,
            at_once=self._at_once(),
            on_end=on_end,
        )
        return trajectories, time.perf_counter() - start

    def _begin_continuous(self, requests: Sequence[EpisodeRequest], on_end: OnEnd, *, first: bool) -> Future[_Played]:
        """The same beside the batches that play already. Each episode gets the K with which it begins."""
        start = time.perf_counter()
        order = longest_first(requests, self._lengths)
        playing = self._continuous.begin(
            requests, order, self._present_rules(), on_end, at_once=self._at_once(), first=first
        )
        timed: Future[_Played] = Future()

        def ended(batch: Future[list[Trajectory]]) -> None:
            if error := batch.exception():
                timed.set_exception(error)
            else:
                timed.set_result((batch.result(), time.perf_counter() - start))

        playing.add_done_callback(ended)
        return timed

    def _present_rules(self) -> Rules:
        return dataclasses.replace(self._rules, token_budget=getattr(self._controller, "token_budget", 0))

    def _cache_metrics(self) -> dict[str, float]:
        """The ``rollout/cache_…`` metrics of vLLM: the mean over the ranks; preemptions are added. Empty if it does not say."""
        measure = getattr(self._sampler, "cache_metrics", None)
        if measure is None:
            return {}
        every = self._ranks.gather([measure()])
        if not all(every):
            return {}
        found = {name: mean([one[name] for one in every]) for name in every[0]}
        return found | {"rollout/cache_preemptions": sum(one["rollout/cache_preemptions"] for one in every)}

    def _at_once(self) -> int | None:
        """How many of this rank's episodes the sampler's cache can hold, at the length that they are expected to end with.

        Before anything is known, an episode counts as the whole context. Ranks divide the cache of servers among them.
        """
        cache = getattr(self._sampler, "cache_tokens", None)  # an engine's; other samplers have no cache of fixed size
        if not cache:
            return None
        expected = self._lengths.tokens(self._controller.horizon if self._controller is not None else None)
        return max(1, int(cache / min(expected or self._sampler.max_context, self._sampler.max_context)))
