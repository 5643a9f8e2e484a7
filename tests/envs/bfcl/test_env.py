import json
import math
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest

from eh_gym.errors import ConfigError, WorkerCallError
from eh_gym.worker import backend_command, shared_pool
from envs.bfcl import env as env_module


def finish(env, action=None):
    for _ in range(1000):
        observation, reward, terminated, truncated, info = env.step(action or env.unwrapped.expert())
        if terminated or truncated:
            return observation, reward, terminated, info
    raise AssertionError("the episode does not end")


@pytest.mark.parametrize("action_format", ["python", "hermes", "native"])
def test_ground_truth_earns_800_of_800(make, action_format):
    def play_all(category):
        env = make(categories=[category], action_format=action_format, workers=4)
        rewards = []
        for task_id in env.unwrapped.task_ids:
            env.reset(options={"task_id": task_id})
            rewards.append(finish(env)[1])
        return sum(rewards)

    with ThreadPoolExecutor(4) as threads:
        totals = list(threads.map(play_all, ["base", "miss_func", "miss_param", "long_context"]))
    assert totals == [200.0] * 4


@pytest.mark.parametrize("action_format", ["python", "hermes", "native"])
def test_a_random_policy_calls_functions_in_the_agent_s_format(make, action_format):
    env, rng = make(action_format=action_format), np.random.default_rng(0)
    calls = []
    for _ in range(12):
        env.reset(options={"task_id": "multi_turn_base_0"})
        calls.append(env.step(env.unwrapped.random_action(rng))[4]["calls"])
    assert calls.count(1) >= 6 > calls.count(0) > 0


def test_an_empty_agent_earns_0_of_800(make):
    env = make()
    total = 0.0
    for task_id in env.unwrapped.task_ids:
        env.reset(options={"task_id": task_id})
        _, reward, terminated, info = finish(env, "[]")
        assert terminated
        assert info["failure"]["kind"] == "no_call"
        total += reward
    assert total == 0.0


def test_held_out_functions_are_revealed_at_their_turn(make):
    env = make()
    env.reset(options={"task_id": "multi_turn_miss_func_0"})
    observation, info = "", {"turn": 0}
    while info["turn"] < 3:
        observation, _, _, _, info = env.step(env.unwrapped.expert())
    *functions, last = observation.splitlines()
    assert last == "I have updated some more functions you can choose from. What about now?"
    assert [json.loads(line)["name"] for line in functions] == ["sort"]


@pytest.mark.parametrize(("action_format", "limit"), [("python", 300), ("native", 200)])
def test_a_result_that_is_too_long_has_its_beginning_and_its_end(make, action_format, limit):
    env = make(action_format=action_format, max_observation_chars=300)
    env.reset(options={"task_id": "multi_turn_base_15"})
    texts = ["x" * (limit - len('{"terminal_output": ""}') + more) for more in (0, 1)]
    if action_format == "python":
        seen = [env.step(f"[echo(content='{text}')]")[0] for text in texts]
    else:
        calls = [{"function": {"name": "echo", "arguments": {"content": text}}} for text in texts]
        seen = env.step(json.dumps({"tool_calls": calls}))[4]["tool_results"]
    whole, short = seen
    assert len(whole) == limit
    half = (limit - 60) // 2
    assert short == f"{whole[:half]}\n[{limit + 1 - 2 * half} characters left out]\n{whole[-half:]}"


@pytest.mark.parametrize("prompt", ["compact", "official"])
def test_the_functions_of_each_info_are_its_own(make, prompt):
    env = make(action_format="native", prompt=prompt)
    for _ in range(2):
        tool = env.reset(options={"task_id": "multi_turn_base_0"})[1]["tools"][0]
        assert tool["function"].get("strict") is None
        assert tool["function"]["parameters"]["type"] == "object"
        tool["function"]["strict"] = tool["function"]["parameters"]["strict"] = True


UNREADABLE = '{"tool_calls": [{"function": {"name": "ls", "arguments": "["}}]}'


@pytest.mark.parametrize(
    ("action_format", "message", "malformed"),
    [
        *(("python", message, False) for message in ("Done.", "[]", "", "{}", "[3]", "pwd")),
        *(
            ("python", "[cd(folder='document'", True),
            ("hermes", "Done.", False),
            ("hermes", "<tool_call>\n{\n</tool_call>", True),
        ),
        *(("native", "Done.", False), ("native", UNREADABLE, True)),
    ],
)
def test_a_message_without_a_call_ends_the_users_turn(make, action_format, message, malformed):
    env = make(action_format=action_format)
    env.reset(options={"task_id": "multi_turn_base_0"})
    info = env.step(message)[4]
    assert (info["turn"], info["calls"], info["malformed"]) == (1, 0, malformed)


def test_many_environments_share_the_workers_and_keep_apart(make):
    ids = [f"multi_turn_base_{i}" for i in (0, 55, 90, 101, 151)]

    def transcript(env, task_id):
        seen = [env.reset(options={"task_id": task_id})[0]]
        done = False
        while not done:
            observation, reward, done, _, _ = env.step(env.unwrapped.expert())
            seen.append((observation, reward))
        return seen

    alone = {task_id: transcript(make(), task_id) for task_id in ids}
    envs = [make(workers=2) for _ in range(64)]
    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(transcript, envs, [ids[i % len(ids)] for i in range(64)]))
    assert together == [alone[ids[i % len(ids)]] for i in range(64)]
    assert len(shared_pool(2, envs[0].unwrapped._command).pids) <= 2


def test_a_dead_worker_ends_its_episodes_and_only_those(make):
    doomed, other = make(workers=2), make(workers=2)
    doomed.reset(options={"task_id": "multi_turn_base_0"})
    other.reset(options={"task_id": "multi_turn_base_1"})
    pid = doomed.unwrapped._session.call("step", {"action": ""}) and doomed.unwrapped._session._worker.pid
    os.kill(pid, signal.SIGKILL)
    observation, reward, terminated, truncated, info = doomed.step("[pwd()]")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    assert info["environment_error"].startswith("WorkerDied: ")
    assert "SIGKILL" in observation
    if other.unwrapped._session._worker.pid != pid:
        assert finish(other)[1] == 1.0
    for _ in range(2):  # the second one's worker dies before the reset
        doomed.reset(options={"task_id": "multi_turn_base_0"})
        assert finish(doomed)[1] == 1.0
        with pytest.raises(gym.error.ResetNeeded):
            doomed.unwrapped.step("[pwd()]")
        os.kill(doomed.unwrapped._session._worker.pid, signal.SIGKILL)


FRAIL = """
import os
import time
def handle(method, params):
    if method == "describe":
        return {"instruction": "", "functions": []}
    if method == "step" and params["action"] == "hang":
        time.sleep(600)
    if method == "step" and params["action"] == "crash":
        os._exit(3)
    if method == "step" and params["action"] == "raise":
        raise ValueError("at /home/of/the/host")
    return "hello" if method == "start" else {}
"""


@pytest.mark.parametrize(
    ("action", "error"), [("hang", "WorkerTimeout"), ("crash", "WorkerDied"), ("raise", "WorkerCallError")]
)
def test_what_its_own_step_does_to_the_worker_is_the_agents_failure(make, tmp_path, monkeypatch, action, error):
    monkeypatch.setattr(env_module, "_described", {})
    (tmp_path / "frail.py").write_text(FRAIL)
    env, neighbour = (make(workers=1, step_timeout_s=0.5 if action == "hang" else 60.0) for _ in range(2))
    monkeypatch.setattr(env.unwrapped, "_command", backend_command(sys.executable, tmp_path / "frail.py"))
    monkeypatch.setattr(neighbour.unwrapped, "_command", env.unwrapped._command)

    def reset(env):
        with monkeypatch.context() as patch:
            patch.setattr(env.unwrapped, "_timeout_s", 60.0)  # this is about steps, and the machine may be busy
            env.reset(options={"task_id": "multi_turn_base_0"})

    reset(env)
    reset(neighbour)
    pid = env.unwrapped._session._worker.pid
    text, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info.pop("world_lost").startswith(f"{error}: ")
    assert info == {"turn": 0, "calls": 0, "malformed": False, "success": False}
    assert "host" not in text
    if error != "WorkerCallError":  # the worker is gone, and its other episodes are not to blame
        _, _, terminated, truncated, info = neighbour.step("[pwd()]")
        assert (terminated, truncated) == (False, True)
        assert info.pop("environment_error").startswith("WorkerDied: ")
        assert info == {"turn": 0, "calls": 0, "malformed": False, "success": False}
        reset(env)
        assert env.unwrapped._session._worker.pid != pid


HOSTILE = [
    "[__import__('os').system('touch {mark}')]",
    "[pwd(a=__import__('os').system('touch {mark}'))]",
    "[pwd.__globals__['os'].system('touch {mark}')]",
    "[ls(a=f\"{{open('{mark}', 'w')}}\")]",
    "[exec(a=\"open('{mark}', 'w')\"), eval(a=\"open('{mark}', 'w')\"), breakpoint(), exit(), input(a=1)]",
    '<tool_call>\n{{"name": "open(\'{mark}\', \'w\') or ls", "arguments": {{}}}}\n</tool_call>',
    '<tool_call>\n{{"name": "ls", "arguments": {{"a=open(\'{mark}\', \'w\'), b": 1}}}}\n</tool_call>',
]
HEAVY = [
    "[power(base=7, exponent=10**8)]",
    "[power(base=10, exponent=5000)]",  # more digits than Python writes out
    "[logarithm(value=7, base=3, precision='20000000')]",
    "[echo(content='a' * 10**10)]",
    "[" + "(" * 10_000,
    "<tool_call>\n" + "[" * 100_000 + "\n</tool_call>",
    "[echo(content='" + "x" * 1_000_000 + "')]",
    "[ls(a=NaN), ls(a=nan), ls(a=inf), ls(a=1e999), ls(a=-1e999)]",
    "[echo(content='\ud800')]",
]


@pytest.mark.parametrize("action_format", ["python", "hermes", "native"])
def test_hostile_and_heavy_text_has_no_effect_and_neither_hangs_nor_crashes(make, tmp_path, action_format):
    mark = tmp_path / "mark"
    env = make(action_format=action_format, step_timeout_s=60.0)  # each takes well under a second
    for text in [*(hostile.format(mark=mark) for hostile in HOSTILE), *HEAVY]:
        env.reset(options={"task_id": "multi_turn_base_15"})
        pid = env.unwrapped._session._worker.pid
        _, reward, _, truncated, info = env.step(text)
        assert not truncated, (text[:100], info)
        assert "world_lost" not in info, (text[:100], info)
        assert reward == 0.0
        assert not mark.exists(), text
        assert env.unwrapped._session._worker.pid == pid


TICKETS = ", ".join(
    f"create_ticket(title=get_ticket(ticket_id={i}), description=get_ticket(ticket_id={i}))" for i in range(1, 40)
)


def test_short_messages_cannot_ask_for_long_results(make):
    env = make()
    env.reset(options={"task_id": "multi_turn_base_2"})
    message = f"[ticket_login(username='a', password='b'), create_ticket(title='x'), {TICKETS}, get_user_tickets()]"
    observation, _, terminated, truncated, info = env.step(message)
    assert (terminated, truncated) == (False, False), info
    assert len(observation) <= 2_010_000  # a short error for each call beyond the limit
    assert "Error during execution: " in observation
    assert info["calls"] >= 1


def folders_in_folders(last):
    """25 levels of copied folders, which share their contents, so that there are 2**25; then a call that walks them."""
    calls = ["mkdir(dir_name='d0')"]
    for i in range(25):
        calls += [f"mkdir(dir_name='d{i + 1}')", f"cp(source='d{i}', destination='c{i}')"]
        calls += [f"mv(source='{name}{i}', destination='d{i + 1}')" for name in "dc"]
    return f"[{', '.join([*calls, last])}]"


def test_calls_without_end_are_interrupted_and_harm_no_other_episode(make, monkeypatch):
    monkeypatch.setattr(env_module, "CPU_S", 0.3)
    env, neighbour = make(), make()
    for each in (env, neighbour):
        each.reset(options={"task_id": "multi_turn_base_0"})
    _, reward, terminated, truncated, info = env.step(folders_in_folders("du()"))
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert "TimeoutError" in info["world_lost"]
    assert finish(neighbour)[1] == 1.0
    neighbour.unwrapped._session.call("finish")
    for each in (env, neighbour):  # the worker has dropped both, and their memory
        with pytest.raises(WorkerCallError, match="KeyError"):
            each.unwrapped._session.call("expert")
    env.reset(options={"task_id": "multi_turn_base_0"})
    assert finish(env)[1] == 1.0


def test_wrong_arguments_are_refused_by_their_name(make):
    wrong = {"split": "training", "categories": ["composite"], "action_format": "json", "workers": 0}
    for name, value in {**wrong, "max_observation_chars": 10, "step_timeout_s": math.nan}.items():
        with pytest.raises(ConfigError, match=f"{name} must be"):
            make(**{name: value})
