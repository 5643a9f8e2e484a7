"""The episodes of an evaluation's folder, as exports need them: of one environment, and one of each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError
from envs.making import read_env_args
from harness.evaluation.folder import KeptEvaluation, is_evaluation, read_evaluation
from harness.evaluation.requests import episode_seed
from harness.run.episode_log import read_episodes

__all__ = ["Line", "environment_args", "evaluation_of", "lines_of_rollout"]

Line = Mapping[str, Any]
"""An episode as a line of the log; `harness.run.episode_log` describes it."""


def evaluation_of(folder: Path, env: str) -> KeptEvaluation:
    """Reads an evaluation's folder.

    Raises:
        ConfigError: The folder holds no evaluation of this environment.
        StateError: A file in it is damaged.
    """
    if not is_evaluation(folder):
        raise ConfigError(
            f"{folder} holds no evaluation; give the --out folder of harness.evaluate or harness.benchmark"
        )
    kept = read_evaluation(folder)
    found = str(kept.settings["env"])
    if found.removeprefix("eh_gym:").rsplit("-v", 1)[0] != env:
        raise ConfigError(f"{folder} has episodes of {found}, and this export is for {env}")
    return kept


def environment_args(kept: KeptEvaluation) -> dict[str, Any]:
    """Returns the arguments of ``gym.make`` that the evaluation was run with."""
    return {"split": kept.settings["split"], **read_env_args(kept.settings["env_args"])}


def lines_of_rollout(kept: KeptEvaluation, rollout: int) -> list[Line]:
    """Returns the `rollout`-th episode of every task that has one. Episodes whose environment failed are left out.

    Raises:
        ConfigError: No task has such an episode.
        StateError: The log is damaged.
    """
    played = _last_of_each_seed(read_episodes(kept.episodes))
    seed = kept.settings["seed"]
    chosen = [line for line in played if line["seed"] == episode_seed(seed, line["task_id"], rollout)]
    if not chosen:
        raise ConfigError(f"{kept.folder} has no episode number {rollout} of any task; --rollout counts from 0")
    return chosen


def _last_of_each_seed(lines: Iterable[Line]) -> list[Line]:
    """An episode whose environment had failed is played again after a stop, and its second line counts."""
    return list({line["seed"]: line for line in lines if line["end"] != "environment-error"}.values())
