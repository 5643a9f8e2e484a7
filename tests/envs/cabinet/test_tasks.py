import random

import pytest

from eh_gym.errors import ConfigError
from envs.cabinet.env import CabinetEnv, CabinetLockedEnv, CabinetOpenEndedEnv
from envs.cabinet.tasks import DRAWERS, make_task, task_ids


def test_a_task_depends_on_its_id_and_on_nothing_else():
    # Written down once: a change of the generator would silently change every published number.
    task = make_task("train-000123")
    assert (task.chain, task.code, task.locked) == ("da", "15", None)
    task = make_task("train-000123", locked=True)
    assert (task.chain, task.code, task.locked) == ("bijhdf", "25", "j")
    random.seed(5)
    assert make_task("train-000123", locked=True) == task


@pytest.mark.parametrize("locked", [False, True])
def test_tasks_are_well_formed(locked):
    for i in range(2000):
        task = make_task(f"dev-{i:06d}", locked=locked)
        n = len(task.chain)
        assert 1 <= n <= (10 if locked else 11)
        assert len(set(task.chain)) == n
        assert set(task.chain) <= set(DRAWERS)
        assert len(task.code) == 2
        assert task.code.isdigit()
        if locked and n >= 4:
            assert task.locked in task.chain[1:]
            assert task.optimal_steps == 3 * n + 2
        else:
            assert task.locked is None
            assert task.optimal_steps == 3 * n


def success_ceiling(k, *, locked=False, longest=11):
    """The share of tasks of at most k steps: 3 a drawer, and 2 more if one of at least 4 is locked. P(n <= m) = 1 -
    .72^m."""
    longest = min(longest, 10) if locked else longest
    most = max((n for n in range(1, longest + 1) if 3 * n + 2 * (locked and n >= 4) <= k), default=0)
    return 1.0 if most == longest else 1 - 0.72**most


@pytest.mark.parametrize(("locked", "longest"), [(False, 11), (True, 11), (False, 1), (False, 4), (True, 6)])
def test_ceiling_is_the_share_of_tasks_that_fit(locked, longest):
    steps = [make_task(f"test-{i:06d}", locked=locked, longest=longest).optimal_steps for i in range(10_000)]
    for k in range(1, 36):
        share = sum(s <= k for s in steps) / len(steps)
        assert share == pytest.approx(success_ceiling(k, locked=locked, longest=longest), abs=0.02)  # sd <= .005


@pytest.mark.parametrize(("split", "size"), [("train", 10**6), ("dev", 10**4), ("test", 10**5), ("all", 1_110_000)])
def test_splits_are_sequences_of_ids(split, size):
    ids = task_ids(split)
    assert len(ids) == size
    assert ids[-1] == ids[size - 1]
    assert ids[-size] == ids[0]
    assert ids[3:6] == [ids[3], ids[4], ids[5]]
    assert ids[-1:-3:-1] == [ids[-1], ids[-2]]
    assert ids[size - 2 : size + 5] == [ids[-2], ids[-1]]
    for place in (0, 1, size // 2, size - 1):
        assert ids[place] in ids
    for place in (size, -size - 1):
        with pytest.raises(IndexError, match="tasks, got the index"):
            ids[place]


@pytest.mark.parametrize(
    "task_id",
    ["dev-010000", "dev-00001", "dev-0000001", "dev-00000१", "dev-", "", "all-000000", "dev--00001", None, 7, ["x"]],
)
def test_anything_else_is_not_the_id_of_a_task(task_id):
    assert task_id not in task_ids("all")


@pytest.mark.parametrize("env_class", [CabinetEnv, CabinetLockedEnv, CabinetOpenEndedEnv])
def test_recurring_tasks_have_the_lengths_of_the_split_and_demonstrations_are_of_all(env_class):
    env = env_class(tasks=96)
    assert len(set(env.task_ids)) == 96
    assert set(env.task_ids) <= set(task_ids("train"))
    needed = [env.reset(options={"task_id": task_id})[1]["optimal_steps"] for task_id in env.task_ids]
    for k in (6, 12, 20, 30):
        share = sum(steps <= k for steps in needed) / 96
        assert share == pytest.approx(success_ceiling(k, locked=env_class is CabinetLockedEnv), abs=1 / 96)
    assert env.demonstrated_ids == task_ids("train")
    assert env.reset(seed=3)[1]["task_id"] in env.task_ids
    assert env_class("dev", tasks=96).task_ids == task_ids("dev")
    with pytest.raises(ConfigError, match="tasks"):
        env_class(tasks=0)
