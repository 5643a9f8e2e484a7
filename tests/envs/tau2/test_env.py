import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest

from eh_gym.worker import Worker, backend_command
from harness.evaluate import main as evaluate
from harness.export.__main__ import main as export

OWNER = {"customer_id": "C1001", "line_id": "L1002"}
VALUES = {
    **{**OWNER, "bill_id": "B1234321", "limit": 1, "gb_amount": 2.0, "app_name": "messaging", "permission": "sms"},
    **{"mode": "2g_only", "apn_settings": {"mmsc_url": None}, "phone_number": "555-123-2002"},
}
ODD = [
    *[("set_network_mode_preference", {"mode": mode}) for mode in (5, None, [], {"a": [1]})],
    *[("refuel_data", {**OWNER, "gb_amount": n}) for n in (1e308, 1e308, 10**400, True)],
    *[("grant_app_permission", {"app_name": "messaging", "permission": p}) for p in ("__dict__", "\0", 3)],
    *[("get_details_by_id", {"id": "L\u202e🧭"}), ("get_details_by_id", {}), ("break_vpn", {}), ("no_tool", {"a": 1})],
    *[("check_status_bar", {name: "user"}) for name in ("self", "requestor", "tool_name")],
    *[("get_bills_for_customer", {"customer_id": "C1001", "limit": n}) for n in (-1, "2", 10**50)],
]
REFUSED = [
    *("a(b=NaN)", "a(b=1e999)", "a(Infinity)", r'a(b="\ud800")', "a([[[[[[1]]]]]])", "a(x=1, x=2)", "a(b=1 c=2)"),
    *("f''", "a(b=" + "[" * 5000, "check_status_bar(1)", "check_status_bar(),", "check_status_bar() done()"),
]


@pytest.fixture
def make(installed):
    installed("EH-Tau2-v0")
    return lambda **kwargs: gym.make("EH-Tau2-v0", **{"split": "base", "actions": "native", **kwargs}).unwrapped


@pytest.fixture(scope="module")
def official(installed):
    with Worker(backend_command(installed("EH-Tau2-v0"), Path(__file__).with_name("official.py"))) as worker:
        yield worker


def message(*calls):
    return json.dumps({"tool_calls": [{"function": {"name": name, "arguments": given}} for name, given in calls]})


def play(env, task_id, choose):
    """Plays until done: `choose`, or the expert where it gives None. Returns calls, answers and reward."""
    info, calls, answers = env.reset(options={"task_id": task_id})[1], [], []
    while True:
        call = choose(info)
        action = message(call) if call else env.expert()
        function = json.loads(action)["tool_calls"][0]["function"]
        observation, reward, terminated, truncated, step = env.step(action)
        assert not truncated, step
        if terminated:
            return calls, answers, reward
        calls.append((function["name"], function["arguments"]))
        answers.append(observation)


def wanderer(seed, share):
    rng = random.Random(seed)

    def choose(info):
        tool = rng.choice(info["tools"])["function"]
        if rng.random() >= share or (tool["name"] == "done" and rng.random() < 0.9):
            return None
        names = tool["parameters"]["properties"]
        return tool["name"], {name: rng.choice([*[VALUES.get(name, "L1001")] * 4, {}]) for name in names}

    return choose


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.campaign)])
def test_answers_and_verdicts_are_tau2s_own(make, official, every):
    env, rewards = make(), set()
    players = [(i, wanderer(i, 0)) for i in env.task_ids[::every]]
    odd = iter(ODD)
    players.append((env.task_ids[9], lambda _: next(odd, None)))
    players += [(env.task_ids[seed % 114], wanderer(seed, 0.5)) for seed in range(0, 200, every)]
    for number, (task_id, choose) in enumerate(players):
        calls, answers, reward = play(env, task_id, choose)
        expected, verdict = official.call("play", {"task_id": task_id, "calls": calls, "limit": 1000})
        assert re.sub("B0000....", "B", str(answers)) == re.sub("B0000....", "B", str(expected)), task_id
        assert reward == verdict == (1.0 if number < 114 // every else verdict), (task_id, calls)
        rewards.add(reward)
    assert rewards == {0.0, 1.0}


def test_the_official_k_cuts_where_tau2_run_does(make, official):
    env = make(split="small")
    task, k = {"task_id": env.task_ids[0]}, env.description.official["horizon"]
    repairs = play(env, *task.values(), lambda _: None)[0]
    for count, reward in ((k - 1, 1.0), (k, 0.0)):
        calls = [("check_status_bar", {})] * (count - len(repairs)) + repairs
        env.reset(options=task)
        rewards = [env.step(message(call))[1] for call in [*calls, ("done", {})][:k]]
        assert sum(rewards) == official.call("play", {**task, "calls": calls})[1] == reward


def test_eight_threads_play_the_episodes_of_one(make):
    ids = make().task_ids[::7]
    alone = [play(make(), task_id, wanderer(task_id, 0.5)) for task_id in ids]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda i: play(make(), i, wanderer(i, 0.5)), ids)) == alone


def test_what_is_no_call_changes_nothing(make):
    env = make(actions="calls")
    env.reset(seed=3)
    for action in (*REFUSED, message(("done", {}))):
        observation, _, terminated, _, info = env.step(action)
        assert (observation[:7], terminated, info) == ("Error: ", False, {"malformed": True}), action
    native = make()
    native.reset(seed=0)
    calls = [("check_status_bar", {})] * 10
    assert len(native.step(message(*calls))[4]["tool_results"]) == 10
    for action in (message(*calls, *calls), "I can't."):
        observation, *_, info = native.step(action)
        assert (observation, info) == ("Error: reply with 1 to 10 calls of tools", {"malformed": True})
    native.reset(options={"task_id": "[service_issue]airplane_mode_on[PERSONA:None]"})
    assert native.step(message(("toggle_airplane_mode", {}), ("done", {})))[1:3] == (0.0, True)
    assert env.step("refuel_data('C1001', line_id=\"L1002\", gb_amount=2)")[0].startswith('{"message": "Success')


@pytest.mark.parametrize(
    ("player", "wins"), [("nothing", 0), ("transfer", 12), ("blind", 39), ("blind --horizon 21", 12)]
)
def test_what_scripts_win_here_and_in_tau2s_own_file(official, player, wins, tmp_path):
    evaluate(f"--env EH-Tau2-v0 --split test --policy {player} --out {tmp_path}/kept".split())
    export(f"tau2 {tmp_path}/kept --out {tmp_path}".split())
    ours, theirs = zip(*official.call("load", {"file": f"{tmp_path}/elastic-horizon.json"}), strict=True)
    assert ours == theirs
    assert (len(ours), sum(ours)) == (40, wins)


def test_a_replay_that_differs_is_an_environment_error_and_a_broken_world_the_agents(make):
    env, told = make(), {"observation": "done", "success": False, "environment_error": "it differs"}
    env.reset(options={"task_id": env.task_ids[0]})
    while '"done"' not in (action := env.expert()):
        env.step(action)
    env.step(message(("set_apn_settings", {"apn_settings": "x"})))
    *_, terminated, truncated, info = env.step(message(("done", {})))
    assert (terminated, truncated, info["success"]) == (True, False, False)
    assert "has no attribute 'mmsc_url'" in info["world_lost"]
    env._running, env._session = True, SimpleNamespace(call=lambda *_: told)
    assert env.step("")[2:4] == (False, True)
