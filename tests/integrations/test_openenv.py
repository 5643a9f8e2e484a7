"""`python -m envs serve` and EH-Remote-v0 over OpenEnv's protocol, with the real package, and a killed server."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest
from endings import Heard
from openenv_server import TOKEN, served_here

import eh_gym
from eh_gym.errors import ConfigError, UserCodeError, WorkerCallError, WorkerDied
from envs.__main__ import main
from envs.ids import task_ids_of

pytest.importorskip("openenv", reason="openenv is not installed; run: tox run -e integration-openenv")

from openenv import GenericEnvClient

START_S = 300.0  # OpenEnv's import alone takes 8 s of processor time


class Served:
    def __init__(self, *arguments):
        self.arguments, self.port = arguments, 0
        self.start()

    def start(self):
        command = [sys.executable, "-m", "envs", "serve", *self.arguments, "--port", str(self.port)]
        environ, pipe = {**os.environ, "EH_ENV_TOKEN": TOKEN}, subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ)
        deadline = threading.Timer(START_S, self.process.kill)
        deadline.start()
        line = self.process.stdout.readline()
        deadline.cancel()
        if not line:
            pytest.fail(f"the server did not start: {self.process.communicate()[1]}")
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def remote(self, **arguments):
        return gym.make("EH-Remote-v0", url=self.url, **{"token": TOKEN, "timeout_s": 120.0, **arguments})


@pytest.fixture(scope="module")
def cabinet():
    server = Served("EH-Cabinet-v0", "--split", "train", "dev", "--max-sessions", "65")
    yield server
    server.kill()


def play(env, task_id, expert):
    """An expert's episode: everything that the environment said."""
    expert.reset(options={"task_id": task_id})
    said = [env.reset(seed=1, options={"task_id": task_id})]
    while True:
        action = expert.unwrapped.expert()
        expert.step(action)
        said.append(env.step(action))
        if said[-1][2] or said[-1][3]:
            return said


def test_appworld_is_served_and_its_end_leaves_no_process(appworld_python):
    psutil = pytest.importorskip("psutil")
    server = Served("EH-AppWorld-v0", "--split", "mini")

    def processes():
        return set(psutil.Process(server.process.pid).children(recursive=True))

    try:
        with server.remote() as remote, gym.make("EH-AppWorld-v0", split="mini") as local:
            task_id = remote.unwrapped.task_ids[0]
            said = play(remote, task_id, local)
            assert said == play(local, task_id, gym.make("EH-AppWorld-v0", split="mini"))
            assert said[-1][4]["success"] is True
            for killed in ("world", "zygote"):
                before = processes()
                remote.reset(seed=0)
                remote.step("print(0)")  # before the first action, a world that died would be made again
                worlds = processes() - before
                for process in worlds if killed == "world" else {world.parent() for world in worlds}:
                    process.kill()
                said, reward, terminated, truncated, info = remote.step("print(1)")
                if killed == "zygote":  # its worlds outlive it
                    assert (said.strip(), terminated, truncated) == ("1", False, False)
                else:
                    assert (reward, terminated, truncated, "world_lost" in info) == (0.0, True, False, True)
            remote.reset(seed=0)
            assert remote.step("print(1)")[0].strip() == "1"
            left = processes()
            assert len(left) >= 3  # two zygotes and a world
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=60) == 0
            assert psutil.wait_procs(left, timeout=60)[1] == []
            assert "environment_error" in remote.step("print(1)")[4]
    finally:
        server.kill()


class Scripted(gym.Env[str, str]):
    observation_space = action_space = eh_gym.UnicodeText(1000)
    broken = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.broken:
            raise WorkerDied("no zygote")
        return "go", {"task_id": "a"}

    def step(self, action):
        if action == "bug":
            raise KeyError("a bug of the server")
        lost = {"success": False, "world_lost": "WorkerDied: its code ended it"}
        failed = {"success": False, "environment_error": "WorkerDied: the host is gone"}
        info = {"lose": lost, "fail": failed, "win": {"success": True}}.get(action, {})
        return action, float(action == "win"), action in ("win", "lose"), action == "fail", info


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setitem(gym.registry, "Scripted-v0", gym.envs.registration.EnvSpec("Scripted-v0", Scripted))
    with served_here("Scripted-v0") as there:
        yield there


def test_an_agents_loss_is_its_failure_and_the_environments_is_not(scripted):
    horizon = Heard(10)
    with eh_gym.ElasticTimeLimit(gym.make("EH-Remote-v0", **scripted), horizon) as env:
        for action, ends in [
            ("lose", (True, False)),
            ("fail", (False, True)),
            ("bug", (False, True)),
            ("win", (True, False)),
        ]:
            env.reset(seed=0)
            _, reward, *ended, info = env.step(action)
            assert tuple(ended) == ends
            assert reward == (action == "win")
            assert ("environment_error" in info) == (action in ("fail", "bug"))
            assert ("world_lost" in info) == (action == "lose")
    assert [outcome.success for outcome in horizon.outcomes] == [False, True]


def test_a_reset_that_fails_there_is_the_environments_failure(scripted, monkeypatch):
    with gym.make("EH-Remote-v0", **scripted) as remote:
        remote.reset(seed=0)
        with monkeypatch.context() as patch:
            patch.setattr(Scripted, "broken", True)
            with pytest.raises(WorkerCallError, match="WorkerDied: no zygote"):
                remote.reset(seed=0)
        remote.reset(seed=0)
        assert remote.step("win")[4]["success"] is True


class Careless(Scripted):
    """Returns one dict at every reset, numpy's values in the info of a step, and a verdict that is a text."""

    def __init__(self):
        self.start = {"task_id": "a", "system_prompt": "rules \ud800"}

    def reset(self, *, seed=None, options=None):
        return "go", self.start

    def step(self, action):
        if action == "verdict":
            return action, 0.0, True, False, {"success": "False"}
        if action in ("nan", "inf", "True"):
            return action, np.True_ if action == "True" else float(action), False, False, {}
        odd = {1: "one", "count": np.int64(3), "malformed": np.bool_(True), "places": np.arange(2)}
        deep = []
        for _ in range(100_000):  # too deep for json
            deep = [deep]
        odd["deep"] = deep
        return action, 0.0, False, False, odd


def test_an_info_arrives_whatever_is_in_it_and_a_wrong_answer_is_refused_as_here(monkeypatch):
    monkeypatch.setitem(gym.registry, "Careless-v0", gym.envs.registration.EnvSpec("Careless-v0", Careless))
    with served_here("Careless-v0") as there, gym.make("EH-Remote-v0", **there) as remote:
        for _ in range(2):
            assert remote.reset()[1] == {"task_id": "a", "system_prompt": "rules \\ud800"}
        assert remote.step("list()")[4] == {"1": "one", "count": 3, "malformed": True, "places": [0, 1]}
        assert remote.step("True")[1] == 1.0
        for action, said in (("verdict", "True or False.*got 'False'"), ("nan", "finite.*got nan"), ("inf", "got inf")):
            remote.reset()
            with pytest.raises(UserCodeError, match=f"task 'a', step 1: .*{said}"):
                remote.step(action)


def test_an_environment_of_one_s_own_is_served_under_its_module_and_namespace(monkeypatch, tmp_path):
    module = (
        "import gymnasium\nfrom envs.cabinet.env import CabinetEnv\ngymnasium.register('mine/Own-v0', CabinetEnv)\n"
    )
    (tmp_path / "mine_to_serve.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    with served_here("mine_to_serve:mine/Own-v0", ("dev",)) as there:
        with gym.make("EH-Remote-v0", **there) as remote:
            assert remote.unwrapped.task_ids[0] == "dev-000000"
            assert remote.reset()[1]["task_id"].startswith("dev-")
        with (
            gym.make("EH-Remote-v0", **there, split="train") as remote,
            pytest.raises(ConfigError, match=r"has the splits \['dev'\], not 'train'"),
        ):
            task_ids_of(remote)


def test_the_tasks_are_asked_for_until_the_server_is_there_again(monkeypatch):
    from envs.openenv.client import RemoteEnv

    with gym.make("EH-Remote-v0", url="http://127.0.0.1:9", patience_s=0.3) as remote, pytest.raises(WorkerDied):
        task_ids_of(remote)
    with served_here("EH-Cabinet-v0") as there, gym.make("EH-Remote-v0", **there) as remote:
        tasks = task_ids_of(remote)
        lost = [ConnectionRefusedError(), urllib.error.HTTPError("", 502, "Bad Gateway", {}, None)]
        ask = RemoteEnv._http

        def restarted(self, path, body=None):
            if lost:
                raise lost.pop()
            return ask(self, path, body)

        monkeypatch.setattr(RemoteEnv, "_http", restarted)
        assert tasks is not None
        assert tasks[3] == "train-000003"
        assert not lost


def test_a_silent_session_is_closed_and_the_next_reset_connects_again(monkeypatch):
    from envs.openenv.server import ServedEnv

    with served_here("EH-Cabinet-v0", idle_s=1.0) as there:
        closed, close = threading.Semaphore(0), ServedEnv.close
        monkeypatch.setattr(ServedEnv, "close", lambda self: (close(self), closed.release()))
        with gym.make("EH-Remote-v0", **there) as one, gym.make("EH-Remote-v0", **there) as two:
            for env in (one, two):
                env.reset(seed=0)
            for _ in range(2):
                assert closed.acquire(timeout=60)
            assert "silent for too long" in one.step("list()")[4]["environment_error"]
            two.reset(seed=0)
            assert "environment_error" not in two.step("list()")[4]


def test_the_token_comes_from_the_variable_and_is_not_pickled(cabinet, monkeypatch):
    monkeypatch.setenv("EH_ENV_TOKEN", TOKEN)
    env = gym.make("EH-Remote-v0", url=cabinet.url)
    data = pickle.dumps(env)
    assert TOKEN.encode() not in data
    assert TOKEN not in repr(env.spec)
    with pickle.loads(data) as copy:
        copy.reset(seed=3)
        assert not copy.step("list()")[3]


def test_a_wrong_url_task_split_or_token_is_named(cabinet):
    for url, token, error in (
        ("127.0.0.1:8765", TOKEN, "url must be like http"),
        ("http://127.0.0.1:1", "short", "16 to 200 characters"),
        ("http://127.0.0.1:1", TOKEN + "\r\nX: y", "visible ASCII"),
    ):
        with pytest.raises(ConfigError, match=error):
            gym.make("EH-Remote-v0", url=url, token=token)
    for task_id in ("nope", "test-000001"):  # the environment knows the second, but its split is not served
        with cabinet.remote() as remote, pytest.raises(ConfigError, match=rf"the splits .* have no task '{task_id}'"):
            remote.reset(options={"task_id": task_id})
    from envs.openenv.server import ServedEnv

    served = ServedEnv("EH-Cabinet-v0", {}, ["train"])
    with pytest.raises(ConfigError, match="a task_id or an index"):
        served.reset(task_id="train-000001", index=3)
    with pytest.raises(ConfigError, match="index must be in 0"):
        served.reset(index=-1)
    with pytest.raises(ConfigError, match=r"spaces are gymnasium\.spaces\.Text"):
        ServedEnv("CartPole-v1", {}, [""]).reset()
    with (
        cabinet.remote(split="test") as remote,
        pytest.raises(ConfigError, match=r"splits \['train', 'dev'\], not 'test'"),
    ):
        remote.reset()
    with cabinet.remote(token="x" * 20) as remote, pytest.raises(ConfigError, match="refuses the token"):
        remote.reset()
    with gym.make("EH-Remote-v0", url="http://127.0.0.1:9", patience_s=0.3) as remote, pytest.raises(WorkerDied):
        remote.reset()


def test_no_text_of_the_agent_s_ends_its_episode_as_an_environment_s_failure(cabinet):
    with cabinet.remote() as remote:
        remote.reset(seed=0)
        for text in ("\ud800", "x" * 20_000_000, "\0", ""):
            observation, reward, terminated, truncated, info = remote.step(text)
            assert (observation, reward, terminated, truncated) == ("error", 0.0, False, False)
            assert info == {"malformed": True}


def test_without_the_token_there_is_health_and_nothing_else(cabinet):
    with urllib.request.urlopen(f"{cabinet.url}/health") as answer:
        assert json.load(answer)["status"] == "healthy"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{cabinet.url}/schema")
    for url in (cabinet.url, cabinet.url.replace("//", "//any:another-token-of-nobody@")):
        client = GenericEnvClient(base_url=url).sync()
        with pytest.raises(ConnectionError):
            client.reset()
        client.close()


def test_the_package_s_own_client_plays(cabinet):
    with GenericEnvClient(base_url=cabinet.url.replace("//", f"//any:{TOKEN}@")).sync() as without_headers:
        assert without_headers.reset(seed=3).observation["text"].startswith("start ")
    with GenericEnvClient(base_url=cabinet.url, headers={"Authorization": f"Bearer {TOKEN}"}).sync() as client:
        begun = client.reset(seed=3, split="dev", index=2)
        assert begun.observation["text"].startswith("start ")
        assert "submit(NN)" in begun.observation["system_prompt"]
        assert begun.observation["info"]["task_id"] == "dev-000002"
        result = client.step({"message": "submit(00)"})
        assert (result.done, result.observation["terminated"], result.observation["success"]) == (True, True, False)
        assert client.state()["step_count"] == 1
        client.reset(seed=3)
        for text in ("x" * 1_000_001, "\ud800"):  # an agent's text is never the server's failure, whoever sends it
            assert client.step({"message": text}).observation["text"] == "error"


def test_64_sessions_at_once_play_as_on_this_machine(cabinet):
    local = gym.make("EH-Cabinet-v0", split="dev")
    mine = local.unwrapped.task_ids
    with cabinet.remote(split="dev") as remote:
        ids = remote.unwrapped.task_ids
        assert (len(ids), ids[:3], ids[-1]) == (len(mine), list(mine[:3]), mine[-1])
    everyone = threading.Barrier(64, timeout=120)

    def episode(task_id):
        with cabinet.remote() as remote:
            remote.reset(options={"task_id": task_id})
            everyone.wait()  # so that all sessions are open together
            said = play(remote, task_id, gym.make("EH-Cabinet-v0"))
            with pytest.raises(gym.error.ResetNeeded, match="call reset"):
                remote.step("list()")
            return said

    with ThreadPoolExecutor(64) as pool:
        said = list(pool.map(episode, mine[:64]))
    assert said == [play(local, task_id, gym.make("EH-Cabinet-v0")) for task_id in mine[:64]]


def test_a_full_server_says_so():
    with served_here("EH-Cabinet-v0", sessions=1) as there:
        with gym.make("EH-Remote-v0", **there) as first, gym.make("EH-Remote-v0", **there, patience_s=0.5) as second:
            first.reset(seed=0)
            with pytest.raises(ConfigError, match="CAPACITY_REACHED"):
                second.reset(seed=0)
        with gym.make("EH-Remote-v0", **there) as third:
            third.reset(seed=0)


def test_a_killed_server_costs_its_episodes_only_and_none_is_counted_twice():
    server = Served("EH-Cabinet-v0")
    horizon = Heard(50)
    env = eh_gym.ElasticTimeLimit(server.remote(patience_s=60.0), horizon)
    expert = gym.make("EH-Cabinet-v0")
    ids, lost, steps = list(env.unwrapped.task_ids[:250]), 0, 0
    try:
        for number, task_id in enumerate(ids):
            while True:
                env.reset(options={"task_id": task_id})
                if number in (80, 160) and lost < number // 80:
                    server.kill()
                    restart = threading.Timer(1.0, server.start)
                    restart.start()
                expert.reset(options={"task_id": task_id})
                done, info = False, {}
                while not done:
                    action = expert.unwrapped.expert()
                    expert.step(action)
                    _, _, terminated, truncated, info = env.step(action)
                    done, steps = terminated or truncated, steps + 1
                if "environment_error" not in info:
                    assert info["success"]
                    break
                lost += 1
                restart.join()
    finally:
        env.close()
        server.kill()
    assert lost == 2
    assert steps > 2000
    assert [outcome.task_id for outcome in horizon.outcomes] == ids


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["EH-Nope-v0"], "EH-Nope-v0"),
        (["EH-Cabinet-v0", "--split", "nonsense"], "nonsense"),
        (["EH-Cabinet-v0", "--env-args", "{"], "--env-args is not JSON"),
        (["EH-Cabinet-v0", "--env-args", '{"nope": 1}'], "can't be made with"),
        (["EH-Cabinet-v0", "--env-args", '{"split": "dev"}'], "--split"),
        (["CartPole-v1", "--split", "test"], "no splits"),
        (["EH-Cabinet-v0", "--max-sessions", "0"], "max_sessions"),
        (["EH-Cabinet-v0", "--port", "99999"], "port 99999"),
        (["EH-Cabinet-v0", "--host", "192.0.2.1"], "192.0.2.1"),
    ],
)
def test_wrong_flags_of_serve_are_refused(arguments, message, monkeypatch, capsys):
    monkeypatch.setenv("EH_ENV_TOKEN", TOKEN)
    assert main(["serve", "--port", "0", *arguments]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_a_given_token_is_not_printed(monkeypatch, capsys):
    monkeypatch.setenv("EH_ENV_TOKEN", TOKEN)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main(["serve", "EH-Cabinet-v0", "--port", "0", "--host", "0.0.0.0"]) == 0
    told = capsys.readouterr().out
    assert "token: as given" in told
    assert TOKEN not in told
