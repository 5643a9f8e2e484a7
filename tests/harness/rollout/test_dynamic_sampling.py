"""Groups whose rewards are all equal are replaced; the controller hears of all."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from quiet_run import rows_of_run

from harness.policy.ranks import Ranks
from harness.rollout.batch_plan import BatchPlan, useful_groups
from harness.rollout.batches import Batches
from harness.rollout.player import Played
from harness.rollout.tasks import TaskStream
from harness.settings.grpo import GRPOConfig
from harness.types.trajectory import Trajectory

TASKS = [f"t{i}" for i in range(10)]


def group(number: int, *rewards: float, end: Any = "terminated") -> list[Trajectory]:
    return [Trajectory(f"t{number}", number, reward=reward, end=end) for reward in rewards]


def test_a_group_is_useful_if_its_rewards_differ() -> None:
    lost = group(3, 0.0, end="environment-error")
    assert useful_groups(group(0, 1.0, 0.0) + group(1, 1.0, 1.0) + group(2, 0.5, 0.5, 0.6) + group(3, 1.0) + lost) == 2


def test_one_replacement_for_each_group_that_lacks() -> None:
    plan = BatchPlan(
        stream=TaskStream([TASKS], per_update=3, seed=0), group_size=2, updates=4, seed=0, dynamic_sampling=2
    )
    first = plan.requests(1)
    played = [
        Trajectory(r.task_id, r.group, reward=float(r.group == 0 and i % 2)) for i, r in enumerate(first)
    ]  # group 0 alone has two different rewards
    second = plan.replacements(1, played)
    assert [r.group for r in second] == [3, 3, 4, 4]
    assert not {r.task_id for r in first} & {r.task_id for r in second}
    played += [Trajectory(r.task_id, r.group, reward=float(i == 0)) for i, r in enumerate(second)]  # group 3 is useful
    third = plan.replacements(1, played)
    assert [r.group for r in third] == [5, 5]
    seeds = [r.seed for r in first + second + third]
    assert len(set(seeds)) == len(seeds)
    played += [Trajectory(r.task_id, r.group, reward=float(i == 0)) for i, r in enumerate(third)]
    assert plan.replacements(1, played) == []


def test_tokens_of_failed_replacements_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = BatchPlan(
        stream=TaskStream([TASKS], per_update=1, seed=0), group_size=2, updates=1, seed=0, dynamic_sampling=1
    )
    nothing: Any = None
    batches = Batches(
        plan=plan,
        environments=nothing,
        controller=None,
        sampler=nothing,
        chat=nothing,
        rules=nothing,
        ranks=Ranks(),
        max_staleness=0,
    )

    def begin(update: int, requests: Any, on_begin: Any, *, first: bool = False) -> Any:
        played = [Trajectory(r.task_id, r.group, ids=[1] * 10, action_mask=[0] * 10) for r in requests]
        if first:
            played[0].fail("gone")
        future: Any = Future()
        future.set_result(Played(played, 0.0))
        return future

    monkeypatch.setattr(batches, "_begin", begin)
    _, metrics = batches.take(0, nothing)
    assert (metrics["tokens/update"], metrics["tokens/replacements"]) == (30, 10)


def test_a_run_has_its_groups_and_the_controller_hears_every_episode(
    quick: GRPOConfig, own_cache: Path, tmp_path: Path
) -> None:

    def run(name: str, **changes: Any) -> list[dict[str, Any]]:
        config = dataclasses.replace(quick, out=tmp_path / name, eval_tasks=0, updates=1, **changes)
        return rows_of_run(config)

    plain, sampled, again = run("plain"), run("a", dynamic_sampling=3), run("b", dynamic_sampling=3, env_threads=4)
    assert sampled == again
    assert plain[0]["train/zero_advantage_groups"] > 0, "else nothing is replaced"
    for row in sampled:
        assert row["rollout/useful_groups"] == pytest.approx(
            (1 - row["train/zero_advantage_groups"]) * row["rollout/episodes"] / quick.group_size
        )
        assert row["rollout/useful_groups"] <= quick.tasks_per_update
    assert sampled[0]["rollout/useful_groups"] > (1 - plain[0]["train/zero_advantage_groups"]) * quick.tasks_per_update
    assert sampled[0]["tokens/update"] == plain[0]["tokens/update"] + sampled[0]["tokens/replacements"]
    assert sampled[0]["horizon/buffer_size"] == sampled[0]["rollout/success"] * sampled[0]["rollout/episodes"]
