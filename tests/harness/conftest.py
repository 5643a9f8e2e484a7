"""Small settings and models that every test of the harness shares."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import gymnasium as gym
import pytest
import torch

import eh_gym  # noqa: F401 - registers the ids
from harness.config import GRPOConfig, preset
from harness.policy import Policy, new_tiny_policy
from harness.warm_start import WarmStart, cached_warm_start


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for warm starts that is this session's own; BFCL's virtualenv stays where it is."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def quick(tmp_path: Path) -> GRPOConfig:
    """A run of a few seconds that still has successes, failures and truncations."""
    return dataclasses.replace(
        preset([]),
        updates=4,
        tasks_per_update=4,
        group_size=4,
        eval_tasks=8,
        checkpoint_every=1,
        min_successes=2,
        run_dir=tmp_path / "run",
        warm_start=WarmStart(episodes=120, max_optimal_steps=6, max_batches=60, polish_batches=10),
    )


@pytest.fixture(scope="session")
def trained(cache: Path) -> Policy:
    """A tiny cabinet policy after its warm start."""
    env = gym.make("EH-Cabinet-v0")
    policy = new_tiny_policy(env, seed=0)
    settings = WarmStart(episodes=200, max_optimal_steps=6, max_batches=150, polish_batches=20)
    cached_warm_start(cache, env, policy, settings, seed=0)
    return policy


@pytest.fixture(scope="session")
def child_env() -> dict[str, str]:
    """The environment of a subprocess that trains."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
