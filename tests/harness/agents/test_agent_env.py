"""An agent program as an environment: its calls are steps, K bounds them, and its wrongs are its failure."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
import threading
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from cabinet_agent import ask
from processes import gone, lives, wait_until

import eh_gym
from eh_gym.errors import ConfigError, WorkerError
from eh_gym.vector import ThreadVectorEnv
from harness.agents import env as agent_env
from harness.agents.env import AgentEnv, read_tasks
from harness.agents.gateway import Gateway
from harness.agents.program import read_verdict
from harness.agents.protocol import ModelAnswer, ModelCall

TASKS = [{"id": "a", "goal": "win", "level": 3}, {"id": "b", "goal": "lose"}]


def says(base_url, *contents):
    return str(
        ask(base_url, [{"role": "user", "content": text} for text in contents])["choices"][0]["message"]["content"]
    )


def until_won(task, base_url):
    while (said := says(base_url, task["goal"])) not in ("win", "lose"):
        pass
    return said == task["goal"]


@pytest.fixture
def env():
    made = []

    def make(agent, **settings):
        made.append(AgentEnv(agent, TASKS, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_requests_are_observations_and_the_answers_actions(env):
    playing = env(until_won)
    observation, info = playing.reset(options={"task_id": "a"})
    assert (observation, info["task_id"], info["level"], info["system_prompt"]) == ("win", "a", 3, "")
    assert isinstance(info["call"], ModelCall)
    assert playing.step("hm")[:4] == ("win", 0.0, False, False)
    _, reward, terminated, truncated, info = playing.step("win")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {"success": True, "failure": None, "trace": ""}
    playing.reset(options={"task_id": "a"})
    assert playing.step("lose")[1:3] == (0.0, True)


def raises(task, base_url):
    says(base_url, "go")
    raise ValueError("spilled the tea")


async def raises_later(task, base_url):
    raises(task, base_url)


async def raises_together(task, base_url):
    async with asyncio.TaskGroup() as group:
        group.create_task(raises_later(task, base_url))


def exits(task, base_url):
    says(base_url, "go")
    sys.exit("bye")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raises_without_words(task, base_url):
    says(base_url, "go")
    raise Unspeakable


def hangs_on(task, base_url):
    says(base_url, "go")
    time.sleep(60)


def command(code):
    folder = Path(__file__).parents[2] / "support"
    lines = f"import sys; sys.path.insert(0, {str(folder)!r}); from cabinet_agent import ask; import os; "
    lines += 'ask(os.environ["OPENAI_BASE_URL"], [dict(role="user", content="go")]); '
    return shlex.join([sys.executable, "-c", lines + code])


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        (raises, "ValueError: spilled the tea ("),
        (raises_without_words, "Unspeakable: (its text can't be made"),
        (exits, "SystemExit: bye"),
        (raises_together, "ValueError: spilled the tea ("),
        (command('print(1); raise ExceptionGroup("all", [ValueError(4712)])'), "exit code 1: ValueError: 4712"),
        (command('sys.exit("KeyError: " + os.environ["OPENAI_API_KEY"])'), "KeyError: KEY"),
        (command("print(1); raise ValueError(4711)"), "ValueError: 4711"),
        (
            command('sys.stderr.write("TypeError: x is no y" + chr(10) + "Node.js v20"); os._exit(1)'),
            "TypeError: x is no y",
        ),
        (command("os.kill(os.getpid(), 9)"), "signal 9"),
        (command("print(1); print('NaN')"), "got nan"),
        (command("pass"), "printed nothing"),
    ],
)
def test_what_an_agent_does_wrong_ends_its_episode_with_reward_0(agent, why, env, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "the user's")
    playing = env(agent)
    playing.reset(options={"task_id": "a"})
    _, reward, terminated, truncated, info = playing.step("words")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert why in info["failure"]
    assert bool(info["trace"]) == any(w in why for w in ("Error", "Exit", "Unsp", "nan"))
    assert "the user's" not in info["trace"]
    assert playing.reset()[0] == "go", "the next episode begins as if nothing had been"


def test_a_verdict_may_stand_beside_any_text(env):
    playing = env(command("import json; print(json.dumps(dict(reward=1, note=chr(0x2028)), ensure_ascii=False))"))
    playing.reset()
    assert playing.step("words")[1] == 1.0


LEAVES = """
import subprocess, time, sys
p = subprocess.Popen(["sleep", "600"], start_new_session=True)
open("{pids}", "w").write(f"{{p.pid}} {{os.getpid()}}")
"""


def written(pids, count=1):
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == count)
    return [int(pid) for pid in pids.read_text().split()]


def test_a_command_that_hangs_is_killed_with_all_that_it_has_started(env, tmp_path, monkeypatch):
    pids = tmp_path / "pids"
    child = f'import subprocess, time; p = subprocess.Popen(["sleep", "600"]); open("{pids}", "w").write(str(p.pid)); '
    says_why = "sys.stderr.write(f'waits for {os.environ[chr(75)]}'); sys.stderr.flush(); "
    monkeypatch.setenv("K", "sk-0123456789abcdef")
    playing = env(command(child + says_why + "time.sleep(600)"), timeout_s=2.0)
    playing._grace_s = 0.1
    playing.reset()
    info = playing.step("words")[4]
    assert ("silent for 2 s" in info["failure"], info["trace"]) == (True, "waits for KEY")
    assert gone(*written(pids))


def test_a_function_that_hangs_leaves_the_place(env):
    playing = env(hangs_on, timeout_s=0.5)
    playing._grace_s = 0.1
    playing.reset()
    assert "time.sleep(60)" in playing.step("words")[4]["trace"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans over")
@pytest.mark.parametrize(("end", "reward"), [("print(1)", 1.0), ("os.kill(os.getppid(), 9)", 0.0)])
def test_a_child_with_a_session_of_its_own_ends_with_its_command_and_holds_no_verdict_up(end, reward, env, tmp_path):
    pids = tmp_path / "pids"
    playing = env(command("exec(" + json.dumps(LEAVES.format(pids=pids)) + "); " + end))
    playing.reset()
    began = time.monotonic()
    assert playing.step("words")[1] == reward
    assert not reward or time.monotonic() - began < 4
    assert gone(*written(pids, 2))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all threads have one folder")
def test_an_agent_that_changes_the_folder_changes_only_its_own(env, tmp_path):
    def wanders(task, base_url):
        os.chdir(tmp_path)
        says(base_url, "go")
        return Path.cwd() == tmp_path

    folder = Path.cwd()
    playing = env(wanders)
    playing.reset()
    assert Path.cwd() == folder
    assert playing.step("words")[1] == 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans over")
def test_commands_end_with_a_trainer_that_is_killed(tmp_path):
    pids = tmp_path / "pids"
    agent = command("exec(" + json.dumps(LEAVES.format(pids=pids)) + "); time.sleep(600)")
    trainer = f"""
from harness.agents.env import AgentEnv
env = AgentEnv({agent!r}, [{{}}])
env.reset()
env.step("words")
"""
    process = subprocess.Popen([sys.executable, "-c", trainer])
    started = written(pids, 2)
    assert all(map(lives, started))
    process.kill()
    process.wait()
    assert gone(*started)


def test_an_agent_that_goes_on_after_k_is_killed_before_its_slot_is_needed(env, tmp_path):
    pids = tmp_path / "pids"
    playing = env(command(f'open("{pids}", "w").write(str(os.getpid())); import time; time.sleep(600)'))
    playing._grace_s = 0.1
    wrapped = limited(playing, 1)
    wrapped.reset()
    playing._session.answer(playing._call, ModelAnswer("words"))
    started = written(pids)
    playing.stop_agent("horizon")
    assert gone(*started)


@pytest.mark.parametrize("agent", [hangs_on, command("import time; time.sleep(600)")])
def test_closing_the_slots_interrupts_agents_that_hang(agent):
    envs = ThreadVectorEnv([lambda: AgentEnv(agent, TASKS)] * 4)
    envs.reset()
    steps = [envs.submit_step(slot, "words") for slot in range(3)]
    time.sleep(0.2)
    began = time.monotonic()
    envs.close()
    assert time.monotonic() - began < 4
    for step in steps:
        with pytest.raises(WorkerError, match="interrupted"):
            step.result(0)


def test_agents_that_begin_together_share_one_server(monkeypatch, env):
    made = []

    class Slow(Gateway):
        def __init__(self):
            time.sleep(0.2)
            super().__init__()
            made.append(self)

    monkeypatch.setattr(agent_env, "Gateway", Slow)
    agent_env._gateway.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: env(until_won).reset(), range(4)))
        assert len(made) == 1
    finally:
        agent_env._gateway.cache_clear()


@pytest.mark.parametrize("agent", [lambda task, base_url: 1, lambda task, base_url: 1 / 0, "true"])
def test_an_agent_that_ends_without_a_call_has_failed_before_its_first_step(agent, env):
    playing = env(agent)
    _, info = playing.reset(options={"task_id": "a"})
    assert "without a call" in info["failure"]
    assert (info["level"], "call" in info) == (3, False)
    with pytest.raises(gym.error.ResetNeeded):
        playing.step("words")


class Caller:
    """An agent that calls five times, whatever it is told, and claims a success. It keeps what it was told."""

    def __init__(self):
        self.told = []
        self.done = threading.Event()

    def __call__(self, task, base_url):
        self.told = []
        for n in range(5):
            try:
                self.told.append(says(base_url, str(n)))
            except urllib.error.HTTPError as error:
                self.told.append((error.code, json.load(error)["error"]["code"]))
        self.done.set()
        return True


def limited(env, k):
    return eh_gym.ElasticTimeLimit(env, eh_gym.FixedHorizon(k), record=False)


@pytest.mark.parametrize(("at_k", "said"), [("error", []), ("stop", ["The budget of 2 calls is used up."])])
def test_the_call_after_the_kth_gets_an_error_and_a_later_success_does_not_count(at_k, said, env):
    caller = Caller()
    playing = env(caller, at_k=at_k)
    wrapped = limited(playing, 2)
    wrapped.reset()
    steps = [wrapped.step(f"answer {n}") for n in range(2)]
    assert [step[1:4] for step in steps] == [(0.0, False, False), (0.0, False, True)]
    assert steps[-1][4]["outcome"]["length"] == 2
    assert not steps[-1][4]["outcome"]["success"]
    playing.stop_agent("horizon")
    assert caller.done.wait(30)
    told = ["answer 0", "answer 1", *said]
    assert caller.told == [*told, *[(404, "horizon_reached")] * (5 - len(told))]


def test_tasks_have_ids_and_splits(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"x": "\u2028"}\n\n{"id": 7, "split": "test"}\r\n', "utf-8")
    assert read_tasks(file) == {"0": {"x": "\u2028"}, "7": {"id": 7, "split": "test"}}
    assert AgentEnv("true", file).task_ids == ["0"]
    assert AgentEnv("true", file, split="test").task_ids == ["7"]
    assert AgentEnv("true", file, split="all").task_ids == ["0", "7"]
    with pytest.raises(ConfigError, match=r"there are test, train; .*eval-tasks"):
        AgentEnv("true", file, split="dev")


@pytest.mark.parametrize(
    ("value", "reward", "success"),
    [
        *[(True, 1.0, True), (np.False_, 0.0, False), (1, 1.0, None), (-2.5, -2.5, None), (np.array(0.5), 0.5, None)],
        ({"reward": 0.25}, 0.25, None),
        ({"reward": np.float32(0.5), "success": True, "note": "x"}, 0.5, True),
        ({"reward": 1, "success": 0}, 1.0, False),
    ],
)
def test_an_agent_gives_a_reward_or_a_verdict_or_both(value, reward, success):
    ended = read_verdict(value)
    assert (ended.reward, ended.success, ended.failure) == (reward, success, "")


def test_what_is_no_finite_number_and_no_verdict_is_the_agents_failure():
    for value in (None, np.array([1]), "1", float("nan"), 1e13, {"score": 1}, [1], {"reward": 1, "success": 0.5}):
        ended = read_verdict(value)
        assert (ended.reward, ended.success, "got " in ended.failure) == (0.0, False, True)
