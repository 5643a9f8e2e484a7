"""Several environments as one: the contract of every text environment, and whose episode is whose."""

import gymnasium as gym
import pytest

from eh_gym.errors import ConfigError
from eh_gym.testing import ExpertEnvContract
from envs.mixed import mixed, read_environments

PLAIN, LOCKED = "EH-Cabinet-v0", "EH-CabinetLocked-v0"


def make(*names, **arguments):
    return gym.make(mixed({name: name for name in names}), **{"split": "dev", **arguments})


class TestTheContract(ExpertEnvContract):
    unknown_task_ids = ("no-such-task", "", "dev-000001", f"{PLAIN}/no-such-task")

    def make(self, **kwargs):
        return make(PLAIN, LOCKED, **kwargs)


def test_each_episode_is_of_the_environment_that_its_task_names():
    env = make(PLAIN, LOCKED)
    for name, answer in ((PLAIN, "error"), (LOCKED, "nothing"), (PLAIN, "error")):
        _, info = env.reset(options={"task_id": f"{name}/dev-000003"})
        own = gym.make(name).reset(options={"task_id": "dev-000003"})[1]
        assert info == {**own, "task_id": f"{name}/dev-000003", "environment": name}
        assert env.step("unlock()")[0] == answer


def test_arguments_are_for_all_or_for_one():
    env = make("EH-BFCL-v0", PLAIN, **{"EH-BFCL-v0": {"categories": ["base"]}}).unwrapped
    assert set(env.parts) == {"EH-BFCL-v0", PLAIN}
    assert all("base" in task for task in env.parts["EH-BFCL-v0"])
    assert env.task_ids[1] == env.parts[PLAIN][0] == f"{PLAIN}/dev-000000"


def test_the_tasks_come_in_turn_until_each_has_ended():
    env = make("EH-BFCL-v0", PLAIN).unwrapped
    few = len(env.parts["EH-BFCL-v0"])
    assert len(env.task_ids) == few + len(env.parts[PLAIN])
    assert [task.split("/")[0] for task in env.task_ids[2 * few - 2 : 2 * few + 3]] == ["EH-BFCL-v0", *[PLAIN] * 4]
    assert len({*env.task_ids[: 3 * few]}) == 3 * few
    assert env.task_ids[-1] == env.parts[PLAIN][-1]
    with pytest.raises(IndexError, match="tasks, got the index"):
        env.task_ids[len(env.task_ids)]


def test_resets_without_a_seed_go_on_from_the_first_seed_in_every_environment():
    def play():
        env = make(PLAIN, LOCKED)
        env.reset(seed=3)  # seeds the one environment that plays
        names = [env.reset()[1]["environment"] for _ in range(8)]
        parts = env.unwrapped.envs
        assert set(names) == set(parts)
        return [(name, int(part.unwrapped.np_random.integers(10**6))) for name, part in parts.items()]

    assert play() == play()


def test_wrong_parts_arguments_and_tasks_are_refused():
    with pytest.raises(ConfigError, match="at least one"):
        make()
    with pytest.raises(ConfigError, match="CartPole"):
        gym.make(mixed({"CartPole-v1": "CartPole-v1"}))
    with pytest.raises(ConfigError, match="split"):
        make(PLAIN, LOCKED, **{LOCKED: {"split": "test"}})
    with pytest.raises(ConfigError, match=f"{PLAIN}/, {LOCKED}/.*'dev-000001'"):
        make(PLAIN, LOCKED).reset(options={"task_id": "dev-000001"})
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        make(PLAIN).unwrapped.step("list()")


def test_the_text_of_env():
    assert read_environments("a:b-v0") == {"a:b-v0": 1}
    assert read_environments(" a:b-v0:3 , c-v1") == {"a:b-v0": 3, "c-v1": 1}
    for wrong in ("", "a,", "a,a", "a:0", "a:2,a"):
        with pytest.raises(ConfigError, match="whole weights"):
            read_environments(wrong)
