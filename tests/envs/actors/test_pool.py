import os
import signal
import time

import gymnasium as gym
import numpy as np
import pytest

import eh_gym
from eh_gym.errors import ConfigError
from eh_gym.testing import TextEnvContract
from envs.actors import ActorPool, in_actors
from envs.actors import pool as pool_module

FRAGILE = "Fragile-Cabinet-v0"


@pytest.fixture(scope="module", autouse=True)
def _registered():
    gym.register(FRAGILE, entry_point="fragile:FragileCabinet")  # the nodes have its module, this process does not
    yield
    del gym.registry[FRAGILE]


@pytest.fixture
def pool(ray_nodes):
    pool = ActorPool(2, cpus=3)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def kept(ray_cluster):
    ray_cluster.at_least(2)
    pool = ActorPool(2, cpus=0)
    yield pool
    pool.close()


class TestAnEnvironmentInAnActor(TextEnvContract):
    """What is promised of every environment holds for one elsewhere."""

    @pytest.fixture(autouse=True)
    def _spec(self, kept):
        self.spec = in_actors("EH-Cabinet-v0", kept)

    def make(self):
        return gym.make(self.spec, split="dev")

    def make_slots(self, count):
        return eh_gym.make_vec(self.spec, count, None, split="dev")

    # Its pool is this process's, and cannot be pickled.
    test_the_spec_survives_pickling = test_the_environment_survives_pickling = None

    def test_it_plays_as_the_environment_in_this_process(self, kept):
        remote, local = self.new(), gym.make("EH-Cabinet-v0", split="dev")
        assert (remote.spec.id, remote.spec.kwargs) == (local.spec.id, local.spec.kwargs)
        assert remote.unwrapped.task_ids[-1] == local.unwrapped.task_ids[-1]
        assert not hasattr(remote.unwrapped, "prepare")
        rng = np.random.default_rng(0)
        for seed in range(3):
            assert remote.reset(seed=seed) == local.reset(seed=seed)
            over = False
            while not over:
                action = local.unwrapped.random_action(rng) if rng.random() < 0.3 else local.unwrapped.expert()
                answer = remote.step(action)
                assert answer == local.step(action)
                over = answer[2]


def test_what_an_environment_raises_arrives_as_it_is(kept):
    env = gym.make(in_actors(FRAGILE, kept), split="dev")
    with pytest.raises(gym.error.ResetNeeded):
        env.step("list()")
    with pytest.raises(ConfigError, match="'nope'"):
        env.reset(options={"task_id": "nope"})
    env.reset(seed=0)
    with pytest.raises(ZeroDivisionError, match="own"):
        env.step("raise")
    assert env.step("list()")[0] == "closed"  # the actor lives on
    with pytest.raises(ConfigError, match="split must be"):
        gym.make(in_actors(FRAGILE, kept), split="nope")
    with pytest.raises(TypeError, match="spilt"):
        gym.make(in_actors(FRAGILE, kept), spilt="dev")


def test_environments_are_spread_over_nodes_and_actors(pool):
    envs = eh_gym.make_vec(in_actors(FRAGILE, pool), 6, max_workers=0)
    _, infos = envs.reset(seed=0)
    assert len(set(pool.nodes)) == 2
    assert sorted(np.unique(infos["pid"], return_counts=True)[1]) == [3, 3]
    _, again = envs.reset(seed=1)
    assert list(again["pid"]) == list(infos["pid"])  # nobody moves without a reason
    envs.close()
    assert [actor.seats for actor in pool._actors] == [0, 0]


def test_a_killed_actor_costs_its_episodes_only_and_a_new_one_takes_its_share_of_the_next(pool):
    envs = [gym.make(in_actors(FRAGILE, pool), split="dev") for _ in range(4)]
    pids = [env.reset(seed=i)[1]["pid"] for i, env in enumerate(envs)]
    observation, reward, terminated, truncated, info = envs[0].step("die")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    assert info["environment_error"].startswith("WorkerDied: ")

    lost = [env for env, pid in zip(envs, pids, strict=True) if pid == pids[0]]
    kept = [env for env, pid in zip(envs, pids, strict=True) if pid != pids[0]]
    assert len(lost) == len(kept) == 2
    assert "environment_error" in lost[1].step("list()")[4]
    assert [env.step("list()")[0] for env in kept] == ["closed", "closed"]
    # The next reset begins the same episode elsewhere.
    local = gym.make("EH-Cabinet-v0", split="dev")
    observation, info = lost[0].reset(seed=0)
    assert observation == local.reset(seed=0)[0]
    assert info["pid"] in pids[1:]
    assert lost[0].step("list()")[0] == "closed"
    while len(pool.nodes) < 2:  # a new one takes a second to begin
        time.sleep(0.01)
    again = [env.reset(seed=1)[1]["pid"] for env in envs]
    assert sorted(np.unique(again, return_counts=True)[1]) == [2, 2]
    assert len(set(again) - set(pids)) == 1


@pytest.fixture
def two_of_a_node(ray_nodes):
    """Makes environments in four actors, and two process ids: the first actor's, and that of the other one of its
    node."""
    pool = ActorPool(4, cpus=2)  # a node has 4 cores
    envs = [gym.make(in_actors(FRAGILE, pool), split="dev") for _ in range(8)]
    pids = [env.reset(seed=0)[1]["pid"] for env in envs[:4]]
    yield envs, pids[0], pids[pool.nodes.index(pool.nodes[0], 1)]
    pool.close()


def test_nobody_moves_to_an_actor_that_was_lost_with_another_of_its_node(two_of_a_node):
    envs, first, other = two_of_a_node
    for pid in (first, other):
        os.kill(pid, signal.SIGKILL)
    assert "environment_error" in envs[0].step("list()")[4]
    # Nobody has called the other one since. It has the fewest environments.
    assert other not in [env.reset(seed=0)[1]["pid"] for env in (envs[0], *envs[4:])]


def test_an_actor_that_outlives_another_of_its_node_is_used_again(two_of_a_node):
    envs, first, other = two_of_a_node
    os.kill(first, signal.SIGKILL)
    assert "environment_error" in envs[0].step("list()")[4]
    while other not in [env.reset(seed=0)[1]["pid"] for env in envs[4:]]:  # until it has answered
        pass


def test_a_hanging_actor_is_killed(ray_nodes, monkeypatch):
    pool = ActorPool(1, cpus=1)
    env = gym.make(in_actors(FRAGILE, pool), split="dev")
    pid = env.reset(seed=0)[1]["pid"]
    with monkeypatch.context() as patch:
        # Of this step alone: an actor on a busy machine may take as long to begin.
        patch.setattr(pool_module, "_CALL_TIMEOUT_S", 1.0)
        info = env.step("hang")[4]
    assert info["environment_error"].startswith("WorkerTimeout: ")
    assert "1 s" in info["environment_error"]
    assert env.reset(seed=0)[1]["pid"] != pid
    pool.close()


def test_too_few_cores_for_an_actor_is_an_error_that_counts_them(ray_nodes, monkeypatch):
    monkeypatch.setattr(pool_module, "_BEGIN_TIMEOUT_S", 1.0)
    with pytest.raises(ConfigError, match=r"3 actors of 4 CPUs.*8 CPUs"):
        ActorPool(3, cpus=4)
