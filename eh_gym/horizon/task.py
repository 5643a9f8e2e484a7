"""A horizon for each task, because the tasks of a benchmark recur."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.checks import floor_to_steps, is_number
from eh_gym.horizon.controller import EpisodeOutcome, check_outcome, is_whole
from eh_gym.horizon.elastic import ElasticHorizon
from eh_gym.horizon.saved import Saved
from eh_gym.ranges import Range

_MOST_TASKS = 10_000  # beyond it, the task that was met longest ago is forgotten


@dataclass(frozen=True, slots=True)
class _Task:
    lengths: tuple[int, ...] = ()  # of its last outcomes, in steps; 0 for a failure
    k: float | None = None  # before rounding; None while the task is free
    meetings: int = 0
    met: bool = False  # since the last update


@dataclass(eq=False, repr=False)
class TaskHorizon(Saved):
    """Gives each task the horizon that its own successes need, once the agent solves it often enough.

    A *meeting* of a task is an update in which episodes of it ended. After each one, with the task's last `window`
    outcomes:

        free:     K = k_max, while there are fewer than `min_episodes`, or fewer than `threshold` of them are successes
        bounded:  target = clip(P90 of the lengths of its successes + delta, k_min, k_max)
                  K = (1 - alpha) K + alpha target, from k_max on

    In each `free_every`-th meeting, a bounded task is free again; otherwise K and the lengths could only shrink. A new
    task, or an episode without a task's name, has the K of an `ElasticHorizon` over all tasks, which begins at `k0`.

    ``TaskHorizon(delta=0, alpha=1, free_every=2)`` is Toggle of Kimi K2.5 (arXiv 2602.02276, Sec. 4.4.2) on steps
    instead of tokens, with phases that alternate by the meetings of a task, not by iterations.

    Raises:
        ConfigError: An argument is out of range.

    >>> controller = TaskHorizon(k_max=50, delta=5, min_episodes=4)
    >>> for length in (8, 8, 9, 9):
    ...     controller.record(EpisodeOutcome(length=length, horizon=50, success=True, task_id="short"))
    >>> metrics = controller.update()
    >>> controller.horizon_for({"task_id": "short"}, None), controller.horizon_for({"task_id": "new"}, None)
    (14, 25)
    """

    info_keys: ClassVar[tuple[str, ...]] = ()
    """The keys of an outcome's info that `record` reads; see `SharedHorizon`."""

    k0: Annotated[int | None, Range(1)] = None
    """K of the elastic horizon at the start, in steps, from k_min to k_max. By default half of k_max, but at least
    k_min."""
    k_min: Annotated[int, Range(1)] = 5
    """The lower bound of K, in steps."""
    k_max: Annotated[int, Range(1)] = 50
    """The upper bound of K, and the K of a free episode, in steps."""
    delta: Annotated[float, Range(0)] = 2.0
    """The headroom over the successes of a task, in steps. The lengths of one task vary less than those of all."""
    alpha: Annotated[float, Range(0, 1, above=True)] = 1.0
    """The weight of the new target in the moving average of a task's K over its meetings. 1 takes the target as it
    is."""
    threshold: Annotated[float, Range(0, 1, above=True)] = 0.25
    """The share of successes from which a task is bounded. 0.25 bounds a task that is solved every fourth time."""
    window: Annotated[int, Range(1)] = 16
    """The number of a task's outcomes that are remembered."""
    min_episodes: Annotated[int, Range(1)] = 4
    """The number of outcomes from which a task may be bounded. At most window."""
    free_every: Annotated[int, Range(0)] = 0
    """A bounded task is free in every N-th meeting. 0: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        k0 = max(self.k_max // 2, self.k_min) if self.k0 is None else self.k0
        self._all = ElasticHorizon(k0=k0, k_min=self.k_min, k_max=self.k_max)
        if self.min_episodes > self.window:
            raise ConfigError(
                f"min_episodes must be <= window ({self.window}), got {self.min_episodes}; no task would ever be "
                "bounded"
            )
        self._tasks: dict[str, _Task] = {}

    @property
    def horizon(self) -> int:
        """The K of an episode whose task was never met, in steps."""
        return self._all.horizon

    def horizon_for(self, info: Mapping[str, Any], seed: int | None) -> int:
        """The K of one episode, by its task ``info["task_id"]``."""
        with self._lock:
            task = self._tasks.get(str(info.get("task_id")))
            if task is None or not task.meetings:
                return self._all.horizon
            if task.k is None or (self.free_every and (task.meetings + 1) % self.free_every == 0):
                return self.k_max
            return floor_to_steps(task.k)

    def record(self, outcome: EpisodeOutcome) -> None:
        """Remembers how an episode of the task ended. Thread-safe."""
        self._all.record(check_outcome(outcome))
        if outcome.task_id is None:
            return
        length = int(outcome.length) if outcome.success else 0
        with self._lock:
            task = self._tasks.pop(outcome.task_id, _Task())
            lengths = (*task.lengths, length)[-self.window :]
            self._tasks[outcome.task_id] = dataclasses.replace(task, lengths=lengths, met=True)
            if len(self._tasks) > _MOST_TASKS:
                del self._tasks[next(iter(self._tasks))]

    def update(self) -> dict[str, float]:
        """Moves the K of every task that was met, and that of the elastic horizon.

        Returns:
            The metrics of `ElasticHorizon.update`; ``horizon/k_tasks``, the mean K of the bounded tasks in steps, or
            NaN; and ``horizon/bounded``, the share of the known tasks that are bounded.
        """
        metrics = self._all.update()
        with self._lock:
            for name, task in self._tasks.items():
                if task.met:
                    self._tasks[name] = _Task(task.lengths, self._moved(task), task.meetings + 1)
            bounded = [task.k for task in self._tasks.values() if task.k is not None]
            share = len(bounded) / len(self._tasks) if self._tasks else 0.0
        return metrics | {
            "horizon/k_tasks": float(np.mean(bounded)) if bounded else float("nan"),
            "horizon/bounded": share,
        }

    def _moved(self, task: _Task) -> float | None:
        lengths = [length for length in task.lengths if length]
        if len(task.lengths) < self.min_episodes or len(lengths) / len(task.lengths) < self.threshold:
            return None
        target = min(max(float(np.percentile(lengths, 90)) + self.delta, float(self.k_min)), float(self.k_max))
        k = float(self.k_max) if task.k is None else task.k
        return k + self.alpha * (target - k)

    def _state(self) -> dict[str, Any]:
        return {
            "all": self._all.state_dict(),
            "tasks": {
                name: [task.k, task.meetings, task.met, list(task.lengths)] for name, task in self._tasks.items()
            },
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        tasks: dict[str, _Task] = {}
        try:
            for name, (k, meetings, met, lengths) in state["tasks"].items():
                if not (k is None or (is_number(k) and self.k_min <= k <= self.k_max)) or not all(
                    map(is_whole, lengths)
                ):
                    raise ValueError(f"task {name!r}")
                tasks[name] = _Task(tuple(lengths), k, int(meetings), bool(met))
        except (AttributeError, TypeError, ValueError) as error:
            raise StateError(
                f"tasks must have K, meetings and lengths ({error}); the state was cut or edited"
            ) from error
        self._all.load_state_dict(state["all"])
        with self._lock:
            self._tasks = tasks
