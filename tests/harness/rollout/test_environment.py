"""What is asked of an environment before anything is played."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import pytest

from eh_gym import ElasticHorizon, KeyedHorizon
from eh_gym.errors import ConfigError, WorkerDied
from harness.rollout.environment import check_kinds


class Env(gym.Env[str, str]):
    """One task, whose first reset may fail."""

    task_ids = ("a",)

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.failures -= 1
        if self.failures >= 0:
            raise WorkerDied("gone")
        return "", {"task_id": "a"}


def test_a_first_reset_that_fails_is_left_to_the_rollout() -> None:
    """It ended the start of the run."""
    keyed = KeyedHorizon(functools.partial(ElasticHorizon, k0=10), "level")
    check_kinds(Env(1), keyed)
    with pytest.raises(ConfigError, match="level"):
        check_kinds(Env(0), keyed)
