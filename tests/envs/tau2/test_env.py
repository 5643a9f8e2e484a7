import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest

import eh_gym  # noqa: F401 - registers the ids
from eh_gym.worker import Worker, backend_command

VALUES = {
    "customer_id": ["C1001", "C1002", "C9"],
    "line_id": ["L1001", "L1002", "L1003"],
    "bill_id": ["B1234321", "B1001"],
    "id": ["L1002", "P1002", "D1001", "B1001", "x"],
    "gb_amount": [2.0, 1, 0.5, -1],
    "limit": [1, 12],
    "app_name": ["messaging", "maps"],
    "permission": ["sms", "storage", "camera"],
    "mode": ["4g_5g_preferred", "2g_only", "6g"],
    "phone_number": ["555-123-2002", "1"],
    "apn_settings": [{}, {"apn_name": "broken"}, {"mmsc_url": None}],
}
ODD = [
    *[("set_network_mode_preference", {"mode": mode}) for mode in (5, None, [], {"a": [1]})],
    *[
        ("refuel_data", {"customer_id": "C1001", "line_id": "L1002", "gb_amount": n})
        for n in (1e308, 1e308, 10**400, True)
    ],
    *[("grant_app_permission", {"app_name": "messaging", "permission": p}) for p in ("__dict__", "\0", 3)],
    *[("get_details_by_id", {"id": "L\u202e🧭"}), ("get_details_by_id", {}), ("check_status_bar", {"self": 1})],
    *[("check_status_bar", {"requestor": "user"}), ("check_status_bar", {"tool_name": "x"}), ("no_tool", {"a": 1})],
    *[("break_vpn", {}), ("_set_apn_settings", {}), ("set_apn_settings", {"apn_settings": {"apn_name": {}}})],
    *[("get_bills_for_customer", {"customer_id": "C1001", "limit": n}) for n in (-1, "2", 10**50)],
]
REFUSED = [
    *['refuel_data("C1001", "L1002", NaN)', 'refuel_data("C1001", "L1002", 1e999)', "a(Infinity)", r'a("\ud800")'],
    *[
        "a(b" + "[" * 5000,
        "a(" + "[" * 5000 + "]" * 5000 + ")",
        "a([[[[[[1]]]]]])",
        "a(x=1, x=2)",
        "check_status_bar(1)",
    ],
    *[
        "check_status_bar(),",
        "check_status_bar() done()",
        "check_status_bar(;)",
        "a(b c)",
        "f'{1}'",
        "9" * 9999 + "()(",
    ],
]


@pytest.fixture
def make(installed):
    installed("EH-Tau2-v0")
    return lambda **kwargs: gym.make("EH-Tau2-v0", **{"split": "base", **kwargs}).unwrapped


@pytest.fixture(scope="module")
def official(installed):
    with Worker(backend_command(installed("EH-Tau2-v0"), Path(__file__).with_name("official.py"))) as worker:
        yield lambda task_id, calls: worker.call("play", {"task_id": task_id, "calls": calls}, timeout_s=60)


def play(env, task_id, choose=lambda _: None):
    """Plays until done, with `choose`, or the expert where it gives None. Returns calls, answers and the reward."""
    info, calls, answers = env.reset(options={"task_id": task_id})[1], [], []
    while True:
        call = choose(info)
        action = message(call) if call else env.expert()
        [function] = [call["function"] for call in json.loads(action)["tool_calls"]]
        observation, reward, terminated, truncated, step = env.step(action)
        assert not truncated, step
        if terminated:
            return calls, answers, reward
        calls.append((function["name"], function["arguments"]))
        answers.append(observation)


def message(call):
    return json.dumps({"tool_calls": [{"function": {"name": call[0], "arguments": call[1]}}]})


def wanderer(rng):
    """Random legal calls, and the expert's."""

    def choose(info):
        tool = rng.choice(info["tools"])["function"]
        if rng.random() < 0.5 or (tool["name"] == "done" and rng.random() < 0.9):
            return None
        return tool["name"], {name: rng.choice(VALUES.get(name, ["x"])) for name in tool["parameters"]["properties"]}

    return choose


def check(official, task_id, calls, answers, reward):
    expected, verdict = official(task_id, calls)
    assert [re.sub("B0000....", "B", a) for a in answers] == [re.sub("B0000....", "B", a) for a in expected], task_id
    assert reward == verdict, (task_id, calls)


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.campaign)])
def test_the_expert_wins_with_tau2s_own_answers(make, official, every):
    env = make(actions="native")
    for task_id in env.task_ids[::every]:
        calls, answers, reward = play(env, task_id)
        assert reward == 1.0
        check(official, task_id, calls, answers, reward)


@pytest.mark.parametrize("episodes", [10, pytest.param(200, marks=pytest.mark.campaign)])
def test_random_episodes_have_tau2s_answers_and_verdicts(make, official, episodes):
    env, rewards = make(actions="native"), set()
    for seed in range(episodes):
        rng = random.Random(seed)
        task_id = rng.choice(env.task_ids)
        played = play(env, task_id, wanderer(rng))
        check(official, task_id, *played)
        rewards.add(played[2])
    assert rewards == {0.0, 1.0}


def test_odd_calls_have_tau2s_answers(make, official):
    env, left = make(actions="native"), iter(ODD)
    check(official, env.task_ids[9], *play(env, env.task_ids[9], lambda _: next(left, None)))


def test_what_is_no_call_changes_nothing(make):
    env = make()
    env.reset(seed=3)
    for action in (*REFUSED, message(("done", {}))):
        observation, _, terminated, _, info = env.step(action)
        assert (observation[:7], terminated, info) == ("Error: ", False, {"malformed": True}), action
    assert env.step("refuel_data('C1001', line_id=\"L1002\", gb_amount=2)")[0].startswith('{"message": "Success')


def test_several_calls_of_a_message_are_answered_one_by_one(make):
    env = make(actions="native")
    env.reset(seed=0)
    calls = json.loads(message(("check_status_bar", {})))["tool_calls"]
    assert len(env.step(json.dumps({"tool_calls": calls * 10}))[4]["tool_results"]) == 10
    assert env.step(json.dumps({"tool_calls": calls * 11}))[4]["malformed"]
    assert env.step(json.dumps({"tool_calls": calls + json.loads(message(("done", {})))["tool_calls"]}))[2]


@pytest.mark.parametrize("tasks", [16, pytest.param(114, marks=pytest.mark.campaign)])
def test_threads_and_interleaved_episodes_change_nothing(make, tasks):
    ids = make().task_ids[:tasks]
    alone = [play(make(actions="native"), task_id, wanderer(random.Random(task_id))) for task_id in ids]
    with ThreadPoolExecutor(8) as threads:
        among = threads.map(lambda i: play(make(actions="native"), i, wanderer(random.Random(i))), ids)
        assert list(among) == alone


@pytest.mark.parametrize(("script", "wins"), [("nothing", 0), ("transfer", 20), ("blind", 112)])
def test_what_scripts_win_of_the_base_tasks(make, script, wins):
    env, total = make(actions="menu", answers="brief"), 0.0
    for task_id in env.task_ids:
        env.reset(options={"task_id": task_id})
        while not (step := env.step(env.script(script)))[2]:
            pass
        total += step[1]
    assert total == wins


def test_a_replay_that_raises_is_an_environment_error(make):
    env = make()
    env._running = True
    told = {"observation": "done", "malformed": False, "success": False, "environment_error": "it differs"}
    env._session = SimpleNamespace(call=lambda *_: told, close=lambda: None)
    result = env.step("done()")
    assert result[2:4] == (False, True)
    assert result[4]["environment_error"] == "it differs"
