"""What was solved of some tasks, from their episodes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.evaluation.intervals import effective_episodes, wilson_interval

Line = Mapping[str, Any]
"""An episode as a line of the log; `harness.records.episode_log` describes it."""


@dataclass(frozen=True)
class Shares:
    """What was solved of some tasks.

    Attributes:
        tasks: The number of tasks with an episode that counts.
        episodes: The number of episodes that count: all except those that were lost.
        mean_at_k: The share of successful episodes.
        mean_interval: The 95 % interval of `mean_at_k`.
        best_at_k: The share of tasks that were solved at least once.
        all_at_k: The share of tasks that were solved every time: pass^k.
        scenarios_at_k: The share of scenarios all of whose tasks were solved, which AppWorld calls scenario goal
            completion. With several episodes per task, the mean over the first, the second and so on. A scenario does
            not count if every episode of one of its tasks was lost because the environment failed. None if the tasks
            name no scenario, if only a part of the split was played, or if the scenario of a lost task is not known.
    """

    tasks: int
    episodes: int
    mean_at_k: float
    mean_interval: tuple[float, float]
    best_at_k: float
    all_at_k: float
    scenarios_at_k: float | None


def shares_of(episodes: Sequence[Line], *, whole: bool = False) -> Shares:
    valid = valid_of(episodes)
    tasks = [[t["success"] for t in task] for task in by_task(valid)]
    mean = mean_share(t["success"] for t in valid)
    won, played = (np.array([count(task) for task in tasks]) for count in (sum, len))
    interval = wilson_interval(mean, effective_episodes(won, played))
    best, every = mean_share(map(any, tasks)), mean_share(map(all, tasks))
    scenarios = _scenarios_at_k(episodes) if whole else None
    return Shares(len(tasks), len(valid), mean, interval, best, every, scenarios)


def valid_of(episodes: Iterable[Line]) -> list[Line]:
    return [t for t in episodes if t["end"] != "environment-error"]


def by_task(episodes: Iterable[Line]) -> list[list[Line]]:
    tasks: dict[str, list[Line]] = {}
    for t in episodes:
        tasks.setdefault(t["task_id"], []).append(t)
    return list(tasks.values())


def mean_share(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _scenarios_at_k(episodes: Iterable[Line]) -> float | None:
    scenarios: dict[str, dict[str, list[bool]]] = {}
    for t in episodes:
        lost, scenario = t["end"] == "environment-error", t["kinds"].get("scenario")
        if scenario is not None:
            solved = scenarios.setdefault(scenario, {}).setdefault(t["task_id"], [])
            solved += [] if lost else [t["success"]]
        elif not lost:
            return None
    # zip stops at the task with the fewest valid episodes
    whole = [
        mean_share(map(all, zip(*tasks.values(), strict=False))) for tasks in scenarios.values() if all(tasks.values())
    ]
    return mean_share(whole) if whole else None
