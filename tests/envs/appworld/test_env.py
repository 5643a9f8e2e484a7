"""What EH-AppWorld-v0 promises beyond tests/envs/test_conformance.py, on the real engine.

All environments have the same settings, and so share a host: its two zygotes take ten seconds each to start.
"""

import os
import signal
import sys
from pathlib import Path

import gymnasium as gym
import psutil
import pytest
from processes import gone

from eh_gym.errors import ConfigError, WorkerDied
from envs.appworld import data, hosts, outputs
from envs.appworld import env as appworld_env

FINISH = "apis.supervisor.complete_task()"
LOG_IN = """\
passwords = {p["account_name"]: p["password"] for p in apis.supervisor.show_account_passwords()}
email = apis.supervisor.show_profile()["email"]
token = apis.simple_note.login(username=email, password=passwords["simple_note"])["access_token"]
"""
NOTES = "print([n['title'] for n in apis.simple_note.search_notes(query='zebra crossing', access_token=token)])"
WRITE = "print(apis.simple_note.create_note(title='zebra crossing', content='x', access_token=token))"


SETTINGS = {"max_observation_chars": 2000, "max_api_calls": 20, "step_timeout_s": 120.0}


@pytest.fixture
def make(appworld_python):
    made = []

    def build(**kwargs):
        made.append(gym.make("EH-AppWorld-v0", split="mini", **{**SETTINGS, **kwargs}))
        return made[-1]

    yield build
    for env in made:
        env.close()


@pytest.fixture
def env(make):
    env = make()
    env.reset(seed=0)
    return env


def play_expert(env, before=""):
    while True:
        code = env.unwrapped.expert().removeprefix("```python\n").removesuffix("\n```")
        result = env.step(f"```python\n{before}{code}\n```")
        if result[2] or result[3]:
            return result


def test_reset_tells_who_asks_when_and_for_what(env):
    observation, info = env.reset(seed=1)
    for part in (info["instruction"], *info["supervisor"].values(), info["datetime"].split("T")[0]):
        assert part in observation
    for part in ("apis.api_docs.show_api_doc", "complete_task", "show_account_passwords", "spotify", "venmo"):
        assert part in info["system_prompt"]
    assert set(info["supervisor"]) == {"first_name", "last_name", "email", "phone_number"}
    assert info["difficulty"] in (1, 2, 3)


def test_an_action_without_python_code_is_malformed(env):
    for action in ("Let me think about it.", "```python\nprint(1\n```", "", None):
        assert env.step(action)[4]["malformed"] is True
    for action in ("print(1)", "1 / 0"):
        assert env.step(action)[4]["malformed"] is False


def test_api_calls_are_counted_and_limited(env):
    assert env.step("for _ in range(5): apis.supervisor.show_profile()")[4]["api_calls"] == 5
    observation, *_, info = env.step("for _ in range(50): apis.supervisor.show_profile()")
    assert info["api_calls"] == 20
    assert "Execution failed" in observation
    # Past the engine's own count.
    said, _, terminated, _, info = env.step(
        "for _ in range(50): requester.client.request('GET', '/supervisor/profile')"
    )
    assert "Not called" in said
    assert (terminated, info["api_calls"]) == (False, 20)
    said, *_, info = env.step("requester.client.post('/spotify/auth/token', content='&a=' * 100_000)")
    assert "a request may take 262,144 bytes" in said
    assert info["api_calls"] == 0


def test_the_code_s_process_ends_before_the_evaluation(env, monkeypatch):
    ask, ended = hosts.Fork.ask, []

    def noted(fork, message=None, **named):
        if "verdict" in (message or {}):
            ended.append(env.unwrapped._world._shell._ended)
        return ask(fork, message, **named)

    monkeypatch.setattr(hosts.Fork, "ask", noted)
    assert play_expert(env)[1] == 1.0
    assert ended == [True]


def test_too_long_code_is_not_run(env):
    observation, _, terminated, _, info = env.step("print(1)\n#" + "x" * 300_000)
    assert "Not run: 300,010" in observation
    assert (terminated, info["malformed"]) == (False, True)


def test_the_reward_can_be_the_share_of_the_tests_that_pass(make):
    graded = make(reward="score")
    graded.reset(seed=0)
    _, reward, _, _, info = graded.step(FINISH)
    verdict = info["verdict"]
    assert reward == info["score"] == verdict["passed"] / verdict["total"]
    assert 0 < reward < 1
    assert verdict["total"] == verdict["passed"] + len(verdict["failures"])
    assert not info["success"]
    graded.reset(seed=0)
    assert (play_expert(graded)[1], graded.unwrapped.spec.kwargs["reward"]) == (1.0, "score")
    with pytest.raises(ConfigError, match="max_observation_chars must be at most 1,048,576, got 5,000,000"):
        hosts.Settings(max_observation_chars=5_000_000)
    with pytest.raises(ConfigError, match="reward must be success or score, got 'share'"):
        make(reward="share")


def test_the_export_of_a_lost_world_is_the_state_at_its_beginning(env, tmp_path):
    task_id = env.unwrapped.task_ids[0]
    writer = outputs.OutputWriter(tmp_path, env.unwrapped._host)
    lost = LOG_IN + WRITE + "\n__import__('posix')._exit(9)"
    assert writer.write(task_id, ["print(1)", lost, "print(2)"]) == outputs.Replayed(False, False)
    folder = tmp_path / "tasks" / task_id
    assert (folder / "logs" / "environment_io.md").read_text().count("### Environment Interaction") == 1
    assert "zebra crossing" not in (folder / "dbs" / "simple_note.jsonl").read_text()
    assert writer.write(task_id, [LOG_IN + WRITE]) == outputs.Replayed(False, False)
    assert "zebra crossing" in (folder / "dbs" / "simple_note.jsonl").read_text()


def test_two_episodes_of_a_task_never_see_each_others_state(make):
    one, other = make(), make()
    task_id = one.unwrapped.task_ids[0]
    for env in (one, other):
        env.reset(options={"task_id": task_id})
        env.step(LOG_IN)
    before = one.step(NOTES)[0]
    assert "note_id" in one.step(WRITE)[0]
    assert one.step(NOTES)[0] != before
    assert other.step(NOTES)[0] == before
    one.reset(options={"task_id": task_id})
    assert "NameError" in one.step("print(token)")[0]
    one.step(LOG_IN)
    assert one.step(NOTES)[0] == before


@pytest.mark.parametrize("part", ["_apps", "_shell"])
def test_a_world_that_was_killed_before_the_first_action_is_made_again(env, part):
    process = getattr(env.unwrapped._world, part).pid
    os.kill(process, signal.SIGKILL)
    said, _, terminated, truncated, info = env.step("print(1)")
    assert (said, terminated, truncated) == ("1\n", False, False)
    assert not {"world_lost", "environment_error"} & set(info)
    assert getattr(env.unwrapped._world, part).pid != process
    assert play_expert(env)[1] == 1.0


def test_a_world_that_twice_dies_before_it_reads_any_code_is_the_environments_failure(env, monkeypatch):
    fork = hosts.Host.fork_world

    def fork_dead(*arguments):
        processes = fork(*arguments)
        os.kill(processes[1].pid, signal.SIGKILL)
        return processes

    os.kill(env.unwrapped._world._shell.pid, signal.SIGKILL)
    monkeypatch.setattr(hosts.Host, "fork_world", fork_dead)
    _, reward, terminated, truncated, info = env.step("print(1)")
    assert (reward, terminated, truncated, "world_lost" in info) == (0.0, False, True, False)
    assert "the code's process" in info["environment_error"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_lost_zygote_costs_the_next_reset_and_no_episode(env, number):
    lost, world = psutil.Process(env.unwrapped._host.pids[number]), env.unwrapped._world
    if sys.platform == "linux":  # if memory runs out, the kernel kills forks first
        pids = [os.getpid(), lost.pid, (world._apps, world._shell)[number].pid]
        ranks = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in pids]
        assert ranks == sorted(set(ranks))
    env.step("I begin.\n```python\nx = 1\n```\n```python\nx = 2\n```")
    lost.kill()
    assert gone(lost)
    assert env.step("print(x)")[0] == "1\n"
    assert play_expert(env)[1] == 1.0
    env.reset(seed=0)
    assert env.step("print(1)")[0] == "1\n"
    assert env.unwrapped._host.pids[number] != lost.pid


def test_without_a_verdict_the_world_is_lost_because_of_the_code(env):
    env.step("print(1)")
    world = env.unwrapped._world
    execute = world.execute

    def and_then_die(code):
        answer = execute(code)
        os.kill(world._apps.pid, signal.SIGKILL)
        return answer

    world.execute = and_then_die
    text, reward, terminated, truncated, info = env.step(FINISH)
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert "world_lost" in info
    assert "destroyed its world" in text


def test_solutions_pass_whatever_random_numbers_the_agent_draws_and_leave_the_data_as_they_are(env):
    def files():
        return {(path, path.stat().st_mtime_ns) for path in data.root_of("mini").rglob("*")}

    before = files()
    for task_id in env.unwrapped.task_ids[4:7]:  # which need few API calls
        env.reset(options={"task_id": task_id})
        _, reward, _, _, info = play_expert(env, before="import random\nrandom.seed(3)\nrandom.random()\n")
        assert reward == 1.0, info
    assert files() == before


def test_a_lost_world_is_described_without_control_characters():
    said = appworld_env._over(WorkerDied("\x1b[2J\u202e is gone\nas é"), False)[4]["world_lost"]
    assert said == "WorkerDied: \\x1b[2J\\u202e is gone\nas é"
