"""Training on environments in Ray actors: the same run as with environments here, also while nodes are lost."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eh_gym.errors import ConfigError
from envs.actors import RemoteEnv, close_shared_actors
from harness import grpo
from harness.config import GRPOConfig
from harness.display import Display
from harness.metrics import read_metrics
from harness.ranks import Ranks


def run(config: GRPOConfig) -> list[dict[str, Any]]:
    """Trains; returns the metrics, less those that a clock makes."""
    assert config.run_dir is not None
    grpo.prepare(config)
    grpo.train(config, config.run_dir, Display(Console(quiet=True)))
    rows = read_metrics(config.run_dir / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.grpo.cache_dir", lambda: cache)


@pytest.fixture
def in_ray(quick: GRPOConfig, ray_nodes: Any, tmp_path: Path) -> Iterator[GRPOConfig]:
    """`quick` in two actors, one on each node."""
    yield dataclasses.replace(
        quick, env_workers="ray", ray_address="auto", ray_actor_slots=8, ray_actor_cpus=3.0, run_dir=tmp_path / "ray"
    )
    close_shared_actors()


@pytest.mark.parametrize("hint", ["", "\n[{left} of {horizon} steps left]"])
def test_metrics_are_those_of_local_environments(quick: GRPOConfig, in_ray: GRPOConfig, hint: str) -> None:
    changes: dict[str, Any] = {"updates": 2, "budget_hint": hint, "env_threads": 16, "eval_every": 1}
    rows = run(dataclasses.replace(in_ray, **changes))
    assert rows == run(dataclasses.replace(quick, **changes))
    assert len(rows) == 2
    assert in_ray.run_dir is not None
    assert quick.run_dir is not None
    for name in ("evaluation.json", "episodes/update-000001.jsonl"):
        assert (in_ray.run_dir / name).read_text() == (quick.run_dir / name).read_text()


@pytest.mark.parametrize("mode", ["lockstep", "streaming"])
def test_a_node_lost_in_the_middle_costs_its_episodes_only(
    quick: GRPOConfig, in_ray: GRPOConfig, ray_nodes: Any, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """Every episode of every update is played to its end, the lost ones from their start, and they are the same."""
    changes: dict[str, Any] = {"updates": 2, "eval_tasks": 0, "env_threads": 16, "rollout": mode}
    plain_step, plain_rollout = RemoteEnv.step, grpo.rollout
    steps: Iterator[int] = iter(())  # the warm start's do not count

    def rollout(*arguments: Any, **settings: Any) -> Any:
        nonlocal steps
        steps = steps if next(steps, None) else itertools.count(1)
        return plain_rollout(*arguments, **settings)

    def step(env: Any, action: str) -> Any:
        if next(steps, None) == 24:  # of 16 environments: most are in their second step
            ray_nodes.kill(env._pool.nodes[0])
        return plain_step(env, action)

    monkeypatch.setattr(grpo, "rollout", rollout)
    monkeypatch.setattr(RemoteEnv, "step", step)
    rows = run(dataclasses.replace(in_ray, **changes))
    monkeypatch.undo()
    local = run(dataclasses.replace(quick, **changes))
    assert [row["rollout/episodes"] for row in rows] == [16, 16]
    assert [row["rollout/environment_errors"] for row in rows] == [0, 0]
    assert rows[0]["rollout/environment_retries"] >= 1
    assert rows[0]["tokens/failed_attempts"] > 0
    same = ("rollout/success", "rollout/length_mean", "tokens/update", "rollout/truncated")
    assert {name: rows[0][name] for name in same} == {name: local[0][name] for name in same}


def test_several_ranks_need_a_cluster_that_they_share(quick: GRPOConfig) -> None:
    config = dataclasses.replace(quick, env_workers="ray")
    with pytest.raises(ConfigError, match="--ray-address auto"):
        grpo._environment(config, Ranks(0, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ray_address": "auto"}, "--ray-address is for --env-workers ray"),
        ({"ray_actor_cpus": 0.5}, "--ray-actor-cpus is for --env-workers ray"),
        ({"env_workers": "ray", "ray_actor_slots": 0}, "raise --ray-actor-slots"),
    ],
)
def test_flags_that_do_nothing_are_refused(quick: GRPOConfig, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(quick, **changes)
