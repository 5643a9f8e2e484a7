"""Adaptive groups: the rule, its sum, what is remembered, and that a run has fewer groups that teach nothing."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quiet_run import rows_of_run as run

from eh_gym.errors import ConfigError
from harness.rollout.batch_plan import BatchPlan
from harness.rollout.groups import TaskSuccess, group_sizes
from harness.rollout.tasks import TaskStream
from harness.settings.grpo import GRPOConfig
from harness.types.trajectory import Trajectory


def episodes(task: str, *successes: bool, end: Any = "terminated") -> list[Trajectory]:
    return [Trajectory(task, 0, success=success, end=end) for success in successes]


def test_the_rule_shows_its_arithmetic() -> None:
    # spreads .5, .5, .14, .14 of 1.28: 12.5, 12.5, 3.5, 3.5 of 32; above 2: 10.5, 10.5, 1.5, 1.5 = 24, the rest
    assert group_sizes([0.5, 0.5, 0.02, 0.98], 32) == [13, 13, 3, 3]
    assert group_sizes([0.3] * 5, 40) == [8] * 5
    assert group_sizes([0.5, 1e-9], 4) == [2, 2]
    assert group_sizes([0.5, 1e-9, 1e-9], 12) == [8, 2, 2]


def test_the_sum_is_the_update_s_whatever_the_chances_are() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        tasks, size = int(rng.integers(1, 20)), int(rng.integers(2, 12))
        sizes = group_sizes(rng.uniform(0.001, 0.999, tasks).tolist(), tasks * size)
        assert (sum(sizes), min(sizes) >= 2) == (tasks * size, True)


def test_estimates_forget_by_halves_and_go_on_from_their_state() -> None:
    known = TaskSuccess()
    known.observe(
        [*episodes("a", True, True, True, False), *episodes("b", False), *episodes("c", True, end="environment-error")]
    )
    assert known.expected("a") == (3 + 0.5) / (4 + 1)
    known.observe(episodes("a", False, False))
    assert known.expected("a") == (1.5 + 0.5) / (2 + 2 + 1)
    assert (known.expected("b"), known.expected("c")) == (0.25, 0.5)
    other = TaskSuccess()
    other.load_state_dict(known.state_dict())
    assert other.expected("a") == known.expected("a")
    assert other.state_dict() == known.state_dict()


def test_the_curriculum_takes_the_least_certain_of_its_candidates() -> None:
    known = TaskSuccess()
    known.observe([*episodes("a", True, True, True), *episodes("b", True, False), *episodes("c", False, False)])
    assert [known.least_certain(some) for some in (["a", "b", "c"], ["a", "c"], ["a", "new", "b"])] == ["b", "c", "new"]
    stream = TaskStream([[f"t{i}" for i in range(12)], ["x", "y", "z"]], per_update=3, seed=0, weights=[2, 1])
    updates = [stream.candidates(update, 2) for update in range(3)]
    assert all(set(one[1]) <= {"x", "y", "z"} for one in updates)
    own = [task for one in updates for some in (one[0], one[2]) for task in some]
    assert sorted(own) == sorted(f"t{i}" for i in range(12))  # a whole pass: none is passed over for good
    plan = BatchPlan(stream=stream, group_size=2, updates=3, seed=0, success=TaskSuccess(), curriculum=2)
    assert [r.task_id for r in plan.requests(0)[::2]] == [some[0] for some in updates[0]]  # nothing is known yet


def test_the_curriculum_comes_back_to_a_task_that_it_has_given_up() -> None:
    tasks = [f"t{i}" for i in range(12)]
    plan = BatchPlan(
        stream=TaskStream([tasks], per_update=3, seed=0),
        group_size=8,
        updates=200,
        seed=0,
        success=TaskSuccess(),
        curriculum=4,
    )
    rng, met = np.random.default_rng(0), []
    for update in range(200):
        batch = [Trajectory(r.task_id, r.group, success=bool(rng.random() < 0.5)) for r in plan.requests(update)]
        for t in batch:
            t.success = t.success and t.task_id != "t0"
        met += [update for t in batch[::8] if t.task_id == "t0"]
        plan.observe(update, batch)
    assert met[-1] > 100


def test_a_replacement_is_no_task_that_the_curriculum_has_chosen() -> None:
    stream = TaskStream([[f"t{i}" for i in range(40)]], per_update=8, seed=0)
    plan = BatchPlan(
        stream=stream, group_size=2, updates=20, seed=0, dynamic_sampling=1, success=TaskSuccess(), curriculum=4
    )
    for update in range(20):
        played = [Trajectory(r.task_id, r.group) for r in plan.requests(update)]
        assert {r.task_id for r in plan.replacements(update, played)}.isdisjoint(t.task_id for t in played)


def test_a_run_adapts_its_groups_also_after_a_resume(
    quick: GRPOConfig, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "harness.assembly.build.parts_of", lambda env: [env.unwrapped.task_ids[:6]]
    )  # so that tasks come again

    config = dataclasses.replace(quick, eval_tasks=0, adaptive_groups=True, curriculum=2)
    rows = run(config)
    assert {row["rollout/episodes"] for row in rows} == {16}
    assert rows[0]["rollout/largest_group"] == 4
    assert max(row["rollout/largest_group"] for row in rows) > 4
    assert config.out is not None
    for checkpoint in sorted((config.out / "checkpoints").iterdir())[1:]:
        shutil.rmtree(checkpoint)
    (config.out / "evaluation.json").unlink()
    assert run(config, resume=True) == rows
    with pytest.raises(ConfigError, match="group_size"):
        dataclasses.replace(quick, group_size=2, adaptive_groups=True)
