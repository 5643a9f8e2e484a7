"""What runs inside an actor, without Ray."""

import copy

import gymnasium as gym
import numpy as np
import pytest

import eh_gym  # noqa: F401 - registers the ids
from eh_gym.errors import ConfigError
from envs.actors.host import EnvHost, EnvKind


@pytest.fixture
def kind():
    return EnvKind(gym.spec("EH-Cabinet-v0"), {"split": "dev"})


def test_the_environments_of_a_host_are_apart(kind):
    host = EnvHost()
    first, info = host.reset(0, kind, 7, None)
    host.reset(1, kind, None, {"task_id": "dev-000001"})
    host.step(1, host.expert(1))
    assert host.reset(0, kind, 7, None)[0] == first
    assert host.step(0, host.expert(0))[0] == "ok"
    local = gym.make("EH-Cabinet-v0", split="dev")
    assert local.reset(seed=7) == (first, info)


def test_a_random_action_tells_where_the_generator_is_then(kind):
    host, rng, same = EnvHost(), np.random.default_rng(3), np.random.default_rng(3)
    host.reset(0, kind, 0, None)
    local = gym.make("EH-Cabinet-v0").unwrapped
    for _ in range(5):
        action, rng.bit_generator.state = host.random_action(0, copy.deepcopy(rng))
        assert action == local.random_action(same)
    assert rng.random() == same.random()


def test_a_kind_tells_what_its_environments_are(kind):
    about = EnvHost().about(kind)
    env = gym.make("EH-Cabinet-v0", split="dev").unwrapped
    assert (about.observation_space, about.action_space) == (env.observation_space, env.action_space)
    assert about.task_ids[:3] == ["dev-000000", "dev-000001", "dev-000002"]
    assert about.methods == {"expert", "random_action"}


def test_kinds_differ_by_their_arguments():
    spec = gym.spec("EH-Cabinet-v0")
    names = {EnvKind(spec, {"split": split}).name for split in ("dev", "test", "dev")}
    assert len(names) == 2
    assert EnvKind(spec, {"a": 1, "b": 2}).name == EnvKind(spec, {"b": 2, "a": 1}).name


def test_what_cannot_be_made_says_why():
    with pytest.raises(ConfigError, match="split"):
        EnvHost().about(EnvKind(gym.spec("EH-Cabinet-v0"), {"split": "nope"}))


def test_a_closed_environment_is_made_anew(kind):
    host = EnvHost()
    host.reset(0, kind, 0, None)
    host.close(0)
    host.close(0)
    with pytest.raises(KeyError):
        host.step(0, "list()")
    assert host.reset(0, kind, 7, None)[1]["task_id"].startswith("dev-")
