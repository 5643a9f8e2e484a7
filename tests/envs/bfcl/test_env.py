import json
import math
import os
import resource
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import pytest

from eh_gym.errors import ConfigError
from eh_gym.worker import backend_command, shared_pool
from envs.bfcl import env as env_module


def finish(env, action=None):
    """Plays the running episode to its end: with the expert, or with one action over and over."""
    for _ in range(1000):
        observation, reward, terminated, truncated, info = env.step(action or env.unwrapped.expert())
        if terminated or truncated:
            return observation, reward, terminated, info
    raise AssertionError("the episode does not end")


def pool_pids(workers):
    env = gym.make("EH-BFCL-v0", workers=workers)
    return shared_pool(workers, env.unwrapped._command).pids


@pytest.mark.parametrize("action_format", ["python", "hermes", "native"])
def test_ground_truth_earns_800_of_800(make, action_format):
    def play_all(category):
        env = make(categories=[category], action_format=action_format, workers=4)
        rewards, steps = [], []
        for task_id in env.unwrapped.task_ids:
            env.reset(options={"task_id": task_id})
            most, count, turn = 0, 0, 0
            done = False
            while not done:
                _, reward, done, _, info = env.step(env.unwrapped.expert())
                count = count + 1 if info["calls"] and info["turn"] == turn else 0
                turn = info["turn"]
                most = max(most, count)
            rewards.append(reward)
            steps.append(most)
        return sum(rewards), max(steps)

    with ThreadPoolExecutor(4) as threads:
        totals = list(threads.map(play_all, ["base", "miss_func", "miss_param", "long_context"]))
    assert [total for total, _ in totals] == [200.0] * 4
    assert max(most for _, most in totals) <= 18


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


def test_reset_tells_the_task_and_its_functions(make):
    env = make()
    observation, info = env.reset(options={"task_id": "multi_turn_miss_func_0"})
    assert info["task_id"] == "multi_turn_miss_func_0"
    assert info["category"] == "miss_func"
    assert info["instruction"] == observation
    documents = [json.loads(line) for line in info["system_prompt"].splitlines() if line.startswith('{"name"')]
    names = {document["name"] for document in documents}
    assert {"ls", "cd", "mkdir"} <= names
    assert "sort" not in names  # held out until turn 3
    assert all(set(document) == {"name", "description", "parameters"} for document in documents)
    assert not any("This tool belongs to" in document["description"] for document in documents)


@pytest.mark.parametrize("action_format", ["python", "native"])
def test_held_out_functions_are_revealed_at_their_turn(make, action_format):
    env = make(action_format=action_format)
    _, first = env.reset(options={"task_id": "multi_turn_miss_func_0"})
    observation, info = "", {"turn": 0}
    while info["turn"] < 3:
        observation, _, _, _, info = env.step(env.unwrapped.expert())
    *functions, last = observation.splitlines()
    assert last == "I have updated some more functions you can choose from. What about now?"
    if action_format == "python":
        assert [json.loads(line)["name"] for line in functions] == ["sort"]
    else:
        assert functions == []
        assert info["tools"][: len(first["tools"])] == first["tools"]
        assert [tool["function"]["name"] for tool in info["tools"][len(first["tools"]) :]] == ["sort"]


def test_results_in_the_native_format_come_one_by_one(make):
    env = make(action_format="native")
    _, info = env.reset(options={"task_id": "multi_turn_base_0"})
    assert "{" not in info["system_prompt"]  # the functions are in the tools alone
    assert {tool["function"]["name"] for tool in info["tools"]} >= {"ls", "cd", "pwd"}
    calls = [{"type": "function", "function": {"name": "pwd", "arguments": {}}}] * 2
    calls[1] = {
        "type": "function",
        "function": {"name": "cd", "arguments": '{"folder": "nowhere"}'},
    }  # as endpoints write it
    observation, _, _, _, info = env.step(json.dumps({"content": "I look around.", "tool_calls": calls}))
    assert info["tool_results"] == [
        '{"current_working_directory": "/workspace"}',
        '{"error": "cd: \'nowhere\': No such file or directory"}',
    ]
    assert observation == "\n".join(info["tool_results"])
    assert (info["calls"], info["malformed"]) == (2, False)


@pytest.mark.parametrize(
    ("message", "malformed"),
    [
        ("Done.", False),
        ('{"content": "Done.", "tool_calls": null}', False),
        ('{"tool_calls": [{"function": {"name": "pwd", "arguments": "no JSON"}}]}', True),
        ('{"tool_calls": [{"name": "pwd"}]}', True),
        ('{"tool_calls": 3}', True),
    ],
)
def test_a_native_message_without_a_call_ends_the_turn(make, message, malformed):
    env = make(action_format="native")
    env.reset(options={"task_id": "multi_turn_base_0"})
    _, _, _, _, info = env.step(message)
    assert (info["turn"], info["calls"], info["malformed"]) == (1, 0, malformed)


def test_tools_are_json_schemas(make):
    """BFCL's own documents say dict and float, which servers and templates refuse or do not know."""
    env, seen = make(action_format="native"), set()

    def types(schema):
        seen.add(schema["type"])
        for inner in [*schema.get("properties", {}).values(), *filter(None, [schema.get("items")])]:
            types(inner)

    for task_id in env.unwrapped.task_ids[::20]:
        for tool in env.reset(options={"task_id": task_id})[1]["tools"]:
            types(tool["function"]["parameters"])
    assert seen == {"object", "number", "string", "integer", "array", "boolean"}


@pytest.mark.parametrize("prompt", ["compact", "official"])
def test_the_functions_of_each_info_are_its_own(make, prompt):
    """Client libraries change them, and with the official prompt all later episodes had the change."""
    env = make(action_format="native", prompt=prompt)
    for _ in range(2):
        tool = env.reset(options={"task_id": "multi_turn_base_0"})[1]["tools"][0]
        assert tool["function"].get("strict") is None
        tool["function"]["strict"] = tool["function"]["parameters"]["strict"] = True


@pytest.mark.parametrize("action_format", ["python", "hermes"])
def test_a_closed_thought_before_the_calls_is_no_part_of_them(make, action_format):
    """A reply in this form lost every episode in the python format."""
    env = make(action_format=action_format)
    for task_id in ("multi_turn_base_0", "multi_turn_miss_func_0", "multi_turn_miss_param_50", "multi_turn_base_100"):
        env.reset(options={"task_id": task_id})
        done = False
        while not done:
            thought = "<think>\nI could call [ls()].\n</think>\n\n"
            _, reward, done, _, _ = env.step(thought + env.unwrapped.expert())
        assert reward == 1.0
    env.reset(options={"task_id": "multi_turn_base_0"})
    assert env.step(f"<think>\n{env.unwrapped.expert()}")[4]["calls"] == 0  # a thought that is never closed


def test_the_21st_step_of_the_last_turn_may_still_succeed(make):
    """Officially an entry cut short in its last turn is checked like any other."""
    env = make()
    env.reset(options={"task_id": "multi_turn_base_0"})
    info = {"turn": 0}
    last = 3
    while info["turn"] < last:
        info = env.step(env.unwrapped.expert())[4]
    steps = 0
    while (action := env.unwrapped.expert()) != "Done.":
        env.step(action)
        steps += 1
    for _ in range(20 - steps):
        assert env.step("[pwd()]")[2] is False
    _, reward, terminated, _, _ = env.step("[pwd()]")
    assert (reward, terminated) == (1.0, True)


@pytest.mark.parametrize(
    "message", ["Done.", "[]", "", "I cannot do that.", "{}", "[3]", "pwd", "[cd(folder='document'"]
)
def test_a_message_without_a_call_ends_the_users_turn(make, message):
    env = make()
    env.reset(options={"task_id": "multi_turn_base_0"})
    assert env.step(message)[4] == {"turn": 1, "calls": 0, "malformed": message.startswith("[cd")}


def test_the_longest_message_in_the_python_format(make):
    """As in docs/bfcl.md, and as the system prompt says."""
    env = make()
    _, info = env.reset(options={"task_id": "multi_turn_base_0"})
    assert "in at most 16,000 characters" in info["system_prompt"]
    calls = [env.step("[pwd(" + " " * blanks + ")]")[4]["calls"] for blanks in (15_993, 15_994)]
    assert calls == [1, 0]


def test_long_results_lose_their_middle_by_the_stated_rule(make):
    script = "[cd(folder='workspace'), ls(a=True), cat(file_name='summary.txt'), find(path='.')]"
    texts = {}
    for limit in (None, 400):
        env = make(max_observation_chars=limit)
        first, _ = env.reset(options={"task_id": "multi_turn_long_context_1"})
        texts[limit] = env.step(script)[0]
        assert env.reset(options={"task_id": "multi_turn_long_context_1"})[0] == first
    whole, cut = texts[None], texts[400]
    assert len(whole) > 400
    assert len(cut) <= 400
    head, note, tail = cut[:170], cut[171:-171], cut[-170:]
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert note == f"[{len(whole) - 340} characters left out]"


def test_many_environments_share_the_workers_and_keep_apart(make):
    """64 interleaved episodes of few tasks: each sees what it sees alone."""
    ids = [f"multi_turn_base_{i}" for i in (0, 55, 90, 101, 151)]

    def transcript(env, task_id, others=()):
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
    assert len(pool_pids(2)) <= 2


def test_a_dead_worker_ends_its_episodes_and_only_those(make):
    doomed, other = make(workers=2), make(workers=2)
    doomed.reset(options={"task_id": "multi_turn_base_0"})
    other.reset(options={"task_id": "multi_turn_base_1"})
    pid = doomed.unwrapped._session.call("step", {"action": ""}, 60) and doomed.unwrapped._session._worker.pid
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
    """An environment_error is begun again and counts nowhere, so no policy may choose one."""
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
    "[ls(a=open('{mark}', 'w'))]",
    "[(lambda: open('{mark}', 'w'))()]",
    "[pwd.__globals__['os'].system('touch {mark}')]",
    "[ls(a=[open('{mark}', 'w') for _ in range(3)])]",
    "[ls(**{{'a': open('{mark}', 'w')}})]",
    "[ls(a=f\"{{open('{mark}', 'w')}}\")]",
    "[ls(a=(x := open('{mark}', 'w')))]",
    "[exec(a=\"open('{mark}', 'w')\"), eval(a=\"open('{mark}', 'w')\"), breakpoint(), exit(), input(a=1)]",
    '<tool_call>\n{{"name": "open(\'{mark}\', \'w\') or ls", "arguments": {{}}}}\n</tool_call>',
    '<tool_call>\n{{"name": "ls", "arguments": {{"a=open(\'{mark}\', \'w\'), b": 1}}}}\n</tool_call>',
]
HEAVY = [
    "[power(base=7, exponent=10**8)]",
    "[power(base=" + "9" * 4000 + ", exponent=9999)]",
    "[power(base=10, exponent=5000)]",  # more digits than Python writes out
    "[logarithm(value=7, base=3, precision='20000000')]",
    "[square_root(number=2, precision=100000000)]",
    "[round_number(number=5, decimal_places=-100000000)]",
    "[mean(numbers=[10**10**10])]",
    "[echo(content='a' * 10**10)]",
    "[echo(content=10**64**64)]",
    "[" + "(" * 10_000,
    "[ls(a=" + "[" * 7_000 + "]" * 7_000 + ")]",
    "[ls(a=" + "ls(a=" * 2_500 + "1" + ")" * 2_500 + ")]",
    "<tool_call>\n" * 16_000,
    "<tool_call>\n" + "[" * 100_000 + "\n</tool_call>",
    "[echo(content='" + "x" * 1_000_000 + "')]",
    "🧭" * 1_000_000,
    "[ls(a=NaN), ls(a=nan), ls(a=inf), ls(a=1e999), ls(a=-1e999)]",
    '<tool_call>\n{"name": "ls", "arguments": {"a": NaN, "b": Infinity}}\n</tool_call>',
    "[echo(content='\x00')]",
    "[echo(content='\ud800')]",
]


@pytest.mark.parametrize("action_format", ["python", "hermes", "native"])
def test_hostile_text_has_no_effect(make, tmp_path, action_format):
    mark = tmp_path / "mark"
    env = make(action_format=action_format)
    for text in HOSTILE:
        env.reset(options={"task_id": "multi_turn_base_15"})
        _, reward, _, truncated, info = env.step(text.format(mark=mark))
        assert not truncated, (text, info)
        assert reward == 0.0
        assert not mark.exists(), text


@pytest.mark.parametrize("action_format", ["python", "hermes", "native"])
def test_heavy_text_neither_hangs_nor_crashes(make, action_format):
    env = make(action_format=action_format, step_timeout_s=60.0)  # each takes well under a second
    for text in HEAVY:
        env.reset(options={"task_id": "multi_turn_base_15"})
        pid = env.unwrapped._session._worker.pid
        _, reward, _, truncated, info = env.step(text)
        assert not truncated, (text[:100], info)
        assert "world_lost" not in info, (text[:100], info)
        assert reward == 0.0
        assert env.unwrapped._session._worker.pid == pid


TICKETS = ", ".join(
    f"create_ticket(title=get_ticket(ticket_id={i}), description=get_ticket(ticket_id={i}))" for i in range(1, 40)
)
AMPLIFIED = {
    "a deep result": [
        *["[touch(file_name='f'), " + ", ".join(["echo(content=cat(file_name='f'), file_name='f')"] * 300) + "]"] * 4,
        "[cat(file_name='f')]",
    ],
    "many long results": [
        "[touch(file_name='f'), echo(content='" + "🧭" * 14_000 + "', file_name='f')]",
        "[" + ", ".join(["cat(file_name='f')"] * 400) + "]",
    ],
    "results that double": [
        f"[ticket_login(username='a', password='b'), create_ticket(title='x'), {TICKETS}, get_user_tickets()]"
    ],
}


@pytest.mark.parametrize("name", AMPLIFIED)
def test_short_messages_cannot_ask_for_long_results(make, name):
    """The last would have 10**14 characters."""
    env = make()
    env.reset(options={"task_id": "multi_turn_base_2"})
    for message in AMPLIFIED[name]:
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
    monkeypatch.setattr(env_module, "_STEP_CPU_S", 0.3)
    env, neighbour = make(), make()
    for each in (env, neighbour):
        each.reset(options={"task_id": "multi_turn_base_0"})
    _, reward, terminated, truncated, info = env.step(folders_in_folders("du()"))
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert "TimeoutError" in info["world_lost"]
    assert finish(neighbour)[1] == 1.0
    env.reset(options={"task_id": "multi_turn_base_0"})
    assert finish(env)[1] == 1.0


def resident(pid):
    """The bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_episode_that_ends_for_want_of_memory_gives_back_what_it_held(make):
    """Its folders hold each other, and the error held the episode: the worker stayed at its limit, and the next one failed."""
    env, neighbour, held = make(workers=1), make(workers=1), []
    neighbour.reset(options={"task_id": "multi_turn_base_0"})
    lines = "\\n".join(["word " * 1300] * 2)  # of one line, sort would make no copy
    for _ in range(3):  # the first leaves the allocator as large as the others find it
        env.reset(options={"task_id": "multi_turn_base_0"})
        worker = env.unwrapped._session._worker
        env.step(f"[touch(file_name='f'), echo(content='{lines}', file_name='f')]")
        for message in range(14):
            names = [f"a{message}b{i}" for i in range(140)]
            calls = [f"touch(file_name='{n}'), echo(content=sort(file_name='f'), file_name='{n}')" for n in names]
            env.step(f"[{', '.join(calls)}]")
        held.append(resident(worker.pid))
        soft, hard = resource.prlimit(worker.pid, resource.RLIMIT_AS)
        pages = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[0])
        resource.prlimit(worker.pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26, hard))
        _, reward, terminated, truncated, info = env.step(folders_in_folders("find()"))
        assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
        assert "MemoryError" in info["world_lost"]
        resource.prlimit(worker.pid, resource.RLIMIT_AS, (soft, hard))
    assert held[2] < held[1] + 2**23  # an episode holds 25 MB
    assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text() == "1000\n"
    assert finish(neighbour)[1] == 1.0
    assert neighbour.unwrapped._session._worker is worker


def test_a_folder_that_holds_itself_is_a_wrong_state_and_no_crash(make):
    env = make()
    env.reset(options={"task_id": "multi_turn_base_0"})
    env.step("[mkdir(dir_name='a'), cp(source='a', destination='a'), cp(source='a', destination='a')]")
    assert "recursion" in env.step("[find(path='.')]")[0]
    _, reward, terminated, info = finish(env, "[]")
    assert (reward, terminated, info["failure"]) == (0.0, True, {"turn": 0, "kind": "wrong_state"})


@pytest.mark.parametrize(
    "arguments",
    [
        {"split": "training"},
        *({"categories": some} for some in (["composite"], [], 5, [["base"]], ["base", "base"])),
        {"action_format": "json"},
        *({"workers": workers} for workers in (0, 2.5)),
        *({"max_observation_chars": chars} for chars in (10, 300.5)),
        *({"step_timeout_s": seconds} for seconds in (0, "5", math.nan)),
    ],
)
def test_wrong_arguments_are_refused_by_their_name(make, arguments):
    with pytest.raises(ConfigError, match=f"{next(iter(arguments))} must be"):
        make(**arguments)
