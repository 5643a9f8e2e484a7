"""The task stream: passes over all tasks, as a pure function of the update."""

import inspect

import gymnasium as gym
import pytest

from eh_gym.errors import ConfigError
from harness.agents.env import AgentEnv
from harness.rollout.environment import environment_spec, tasks_of
from harness.rollout.tasks import TaskStream
from harness.settings.environment import Environment

TASKS = [f"t{i}" for i in range(10)]


def test_seeds_differ_and_a_large_update_wraps_around():
    assert TaskStream([TASKS], per_update=10, seed=0).batch(0) != TaskStream([TASKS], per_update=10, seed=1).batch(0)
    assert len(TaskStream([TASKS], per_update=25, seed=0).batch(0)) == 25


def test_several_environments_take_turns_by_weight_and_each_has_passes_of_its_own():
    stream = TaskStream([TASKS, ["x", "y", "z"]], per_update=4, seed=0, weights=[2, 1])
    batches = [stream.batch(update) for update in range(15)]
    met = [task for batch in batches for task in batch]
    first, second = [t for t in met if t in TASKS], [t for t in met if t not in TASKS]
    assert (len(first), len(second)) == (40, 20)
    assert {len([t for t in batch if t in TASKS]) for batch in batches} == {2, 3}  # 8/3 of 4
    passes = [first[i : i + 10] for i in range(0, 40, 10)]
    assert all(sorted(p) == TASKS for p in passes)
    assert len({tuple(p) for p in passes}) > 1  # each has an order of its own
    assert all(sorted(second[i : i + 3]) == ["x", "y", "z"] for i in range(0, 18, 3))
    assert [stream.batch(u) for u in reversed(range(15))][::-1] == batches


def test_an_environment_that_names_no_tasks_is_refused():
    with pytest.raises(ConfigError, match=r"^Env has no task_ids; add"):
        tasks_of(gym.Env())


def test_an_agent_s_environment_gets_every_argument_but_the_split():
    spec = environment_spec(Environment(agent="json:dumps", tasks="a.jsonl"), slots=1, temperature=1.0)
    assert {*spec.kwargs, "split"} == {*inspect.signature(AgentEnv).parameters}
