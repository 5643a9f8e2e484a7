import gymnasium as gym
import numpy as np
import pytest

from eh_gym.errors import ConfigError
from envs.cabinet.env import CabinetEnv, CabinetLockedEnv, CabinetOpenEndedEnv
from envs.cabinet.tasks import make_task, task_ids


def _task_of_length(n, locked=False):
    """The first task with n drawers, of which the last is not locked."""
    tasks = (make_task(task_id, locked=locked) for task_id in task_ids("dev"))
    return next(task for task in tasks if len(task.chain) == n and task.locked != task.chain[-1])


def _start(n, locked=False):
    task = _task_of_length(n, locked)
    env = (CabinetLockedEnv if locked else CabinetEnv)()
    observation, info = env.reset(options={"task_id": task.task_id})
    assert (observation, info["optimal_steps"]) == (f"start {task.chain[0]}", task.optimal_steps)
    return env, task


def _say(env, action):
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"malformed": observation == "error"}
    return observation


def test_a_whole_episode_by_hand():
    env, task = _start(2)
    first, second = task.chain
    other = next(d for d in "abc" if d not in task.chain)
    assert _say(env, "list()") == "closed"
    assert _say(env, "read()") == "error closed"
    assert _say(env, "close()") == "error closed"
    assert _say(env, f"open({other})") == "ok"
    assert _say(env, "read()") == "empty"
    assert _say(env, f"open({first})") == f"error open {other}"
    assert _say(env, "list()") == f"open {other}"
    assert _say(env, "close()") == "ok"
    assert _say(env, f"  open({first})\n") == "ok"
    assert _say(env, "read()") == f"next {second}"
    assert _say(env, "close()") == "ok"
    assert _say(env, f"open({second})") == "ok"
    assert _say(env, "read()") == f"code {task.code[0]} {task.code[1]}"
    assert env.step(f"submit({task.code})") == ("right", 1.0, True, False, {"malformed": False, "success": True})


@pytest.mark.parametrize("wrong", ["00", "01", "abc"])
def test_a_wrong_code_ends_the_episode_without_reward(wrong):
    env, task = _start(1)
    if wrong == task.code:
        wrong = "02"
    assert env.step(f"submit({wrong})") == ("wrong", 0.0, True, False, {"malformed": False, "success": False})
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step("list()")


_MALFORMED = [
    *("", " ", "open", "open(", "open()", "open(m)", "open(ab)", "OPEN(a)", "open(a) read()", "read(a)", "close(1)"),
    *("list(a)", "submit()", "unlock()", "say(hi)", "open(ä)", "опен(a)", "open(a)\0", "open(١)", "\ud800"),
    *("x" * 100_000, "(" * 100_000, "a(" * 50_000),
    *(None, 7, b"read()"),
]


@pytest.mark.parametrize("action", _MALFORMED, ids=range(len(_MALFORMED)))
def test_anything_else_is_an_error_and_changes_nothing(action):
    env, task = _start(2)
    env.step(f"open({task.chain[0]})")
    assert _say(env, action) == "error"
    assert _say(env, "list()") == f"open {task.chain[0]}"


def test_locks_by_hand():
    env, task = _start(4, locked=True)
    other = next(d for d in "abcde" if d not in task.chain)
    assert _say(env, "unlock()") == "nothing"
    assert _say(env, f"open({other})") == "ok"
    assert _say(env, f"open({task.locked})") == f"error open {other}"
    assert _say(env, "unlock()") == "nothing"  # a drawer stood open, so the lock was not met
    assert _say(env, "close()") == "ok"
    assert _say(env, f"open({task.locked})") == "locked"
    assert _say(env, "list()") == "closed"
    assert _say(env, f"open({task.locked})") == "locked"
    assert _say(env, "unlock(a)") == "error"
    assert _say(env, "unlock()") == "ok"
    assert _say(env, "unlock()") == "nothing"
    assert _say(env, f"open({task.locked})") == "ok"


def test_open_ended_a_wrong_code_ends_nothing_and_nothing_can_be_won_after_it():
    env = CabinetOpenEndedEnv()
    env.reset(options={"task_id": "dev-000000"})
    code = make_task("dev-000000").code
    wrong = "00" if code != "00" else "01"
    for submitted in (wrong, code, wrong):
        answer = env.step(f"submit({submitted})")
        assert answer == ("wrong", 0.0, False, False, {"malformed": False})
    assert env.expert() == "list()"
    env.reset(options={"task_id": "dev-000000"})
    assert env.step(f"submit({code})")[:3] == ("right", 1.0, True)


def _follow_expert(env, limit=60):
    for step in range(1, limit + 1):
        _, reward, terminated, _, info = env.step(env.expert())
        if terminated:
            return step, reward, info["success"]
    return limit, 0.0, False


@pytest.mark.parametrize("env_class", [CabinetEnv, CabinetLockedEnv, CabinetOpenEndedEnv])
def test_expert_recovers_from_any_state(env_class):
    env = env_class(split="test")
    rng = np.random.default_rng(0)
    calls = [*(f"open({d})" for d in "abcdefghijkl"), "read()", "read()", "close()", "close()", "unlock()", "nonsense"]
    for seed in range(300):
        _, info = env.reset(seed=seed)
        for _ in range(int(rng.integers(40))):
            env.step(calls[rng.integers(len(calls))])
        steps, reward, success = _follow_expert(env)
        assert (reward, success) == (1.0, True)
        assert steps <= info["optimal_steps"] + 1  # at most one close more than from the start


@pytest.mark.parametrize("env_class", [CabinetEnv, CabinetLockedEnv, CabinetOpenEndedEnv])
def test_the_longest_chain_can_be_chosen(env_class):
    env = env_class("dev", longest=5)
    steps = {env.reset(seed=seed)[1]["optimal_steps"] for seed in range(100)}
    assert max(steps) == (17 if env_class is CabinetLockedEnv else 15)
    for longest in (0, 12, "5", 2.5):
        with pytest.raises(ConfigError, match="longest must be"):
            env_class(longest=longest)


def test_a_closed_thought_before_a_call_is_ignored():
    env = CabinetEnv()
    letter = env.reset(seed=0)[0][-1]
    assert env.step(f"<think>\nThe chain begins there: open({letter})\n</think>\n\nopen({letter})")[0] == "ok"
    assert env.step("so it is open\n</think>\n\nread()")[0] != "error"  # the template has opened the thought
    assert env.step("<think>\nclose()")[4]["malformed"]
    assert env.step("</think>close()</think>")[4]["malformed"]
