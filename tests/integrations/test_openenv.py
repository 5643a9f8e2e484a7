"""`python -m envs serve` and EH-Remote-v0 over OpenEnv's protocol, with the real package, its own client, and a killed server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import pytest

import eh_gym
from eh_gym.errors import ConfigError, MissingBackendError, WorkerDied

pytest.importorskip("openenv", reason="openenv is not installed; run: tox run -e integration-openenv")

TOKEN = "a-token-for-this-test-alone"


class Served:
    """A server process on a port that stays its own over a restart."""

    def __init__(self, *arguments: str, port: int = 0) -> None:
        self.arguments, self.port = arguments, port
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "envs", "serve", *self.arguments, "--port", str(self.port)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "EH_APPWORLD_TOKEN": TOKEN},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the server did not start: {self.process.communicate()[1]}")
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def remote(self, **arguments: Any) -> gym.Env[str, str]:
        return gym.make("EH-Remote-v0", url=self.url, **{"token": TOKEN, **arguments})


@pytest.fixture(scope="module")
def cabinet() -> Iterator[Served]:
    server = Served("EH-Cabinet-v0", "--split", "train", "dev", "--max-sessions", "65")
    yield server
    server.kill()


def play(env: gym.Env[str, str], task_id: str, expert: gym.Env[str, str]) -> list[Any]:
    """An expert's episode: everything that the environment said."""
    expert.reset(options={"task_id": task_id})
    said: list[Any] = [env.reset(seed=1, options={"task_id": task_id})]
    while True:
        action = expert.unwrapped.expert()  # type: ignore[attr-defined]
        expert.step(action)
        said.append(env.step(action))
        if said[-1][2] or said[-1][3]:
            return said


def test_an_episode_is_the_same_as_on_this_machine(cabinet: Served) -> None:
    local, expert = gym.make("EH-Cabinet-v0", split="dev"), gym.make("EH-Cabinet-v0")
    with cabinet.remote(split="dev") as remote:
        ids = remote.unwrapped.task_ids  # type: ignore[attr-defined]
        mine = local.unwrapped.task_ids  # type: ignore[attr-defined]
        assert (len(ids), ids[:3], ids[-1]) == (len(mine), list(mine[:3]), mine[-1])
        for task_id in ids[:3]:
            assert play(remote, task_id, expert) == play(local, task_id, expert)
        with pytest.raises(gym.error.ResetNeeded, match="call reset"):
            remote.step("list()")


@pytest.mark.parametrize(
    ("env_id", "split"),
    [
        ("EH-CabinetLocked-v0", "dev"),
        ("EH-CabinetOpenEnded-v0", "dev"),
        ("EH-BFCL-v0", "dev"),
        ("EH-AppWorld-v0", "mini"),
    ],
)
def test_every_environment_is_served(env_id: str, split: str) -> None:
    """The expert of an environment here plays one there, too; the verdict comes from there."""
    try:
        local = gym.make(env_id, split=split)
        observation, info = local.reset(seed=0)
    except MissingBackendError as missing:
        pytest.skip(str(missing))
    server = Served(env_id, "--split", split)
    try:
        with server.remote() as remote:
            there, more = remote.reset(options={"task_id": info["task_id"]})
            assert (there, more["task_id"], more["system_prompt"]) == (
                observation,
                info["task_id"],
                info["system_prompt"],
            )
            done = False
            while not done:
                action = local.unwrapped.expert()  # type: ignore[attr-defined]
                observation, reward, done, _, _ = local.step(action)
                there, earned, done_there, _, last = remote.step(action)
                assert (there, earned, done_there) == (observation, reward, done)
            assert last["success"] is True
    finally:
        server.kill()
        local.close()


def test_a_task_is_chosen_by_the_seed_where_none_is_named(cabinet: Served) -> None:
    with cabinet.remote() as remote, gym.make("EH-Cabinet-v0") as local:
        for seed in (0, 1):
            assert remote.reset(seed=seed) == local.reset(seed=seed)


def test_mistakes_are_named(cabinet: Served) -> None:
    with cabinet.remote() as remote, pytest.raises(ConfigError, match="expected the id of a cabinet task"):
        remote.reset(options={"task_id": "nope"})
    with (
        cabinet.remote(split="test") as remote,
        pytest.raises(ConfigError, match=r"splits \['train', 'dev'\], not 'test'"),
    ):
        remote.reset()
    with cabinet.remote(token="x" * 20) as remote, pytest.raises(ConfigError, match="refuses the token"):
        remote.reset()
    with gym.make("EH-Remote-v0", url="http://127.0.0.1:9", patience_s=0.3) as remote, pytest.raises(WorkerDied):
        remote.reset()


def test_no_text_of_the_agent_s_ends_its_episode_as_an_environment_s_failure(cabinet: Served) -> None:
    with cabinet.remote() as remote:
        remote.reset(seed=0)
        for text in ("\ud800", "x" * 20_000_000, "\0", ""):
            observation, reward, terminated, truncated, info = remote.step(text)
            assert (observation, reward, terminated, truncated) == ("error", 0.0, False, False)
            assert info == {"malformed": True}


def test_without_the_token_there_is_health_and_nothing_else(cabinet: Served) -> None:
    with urllib.request.urlopen(f"{cabinet.url}/health") as answer:
        assert json.load(answer)["status"] == "healthy"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{cabinet.url}/schema")
    from openenv import GenericEnvClient

    client = GenericEnvClient(base_url=cabinet.url).sync()
    with pytest.raises(Exception, match=r"401|403|1008|token"):
        client.reset()
    client.close()


def test_the_package_s_own_client_plays(cabinet: Served) -> None:
    from openenv import GenericEnvClient

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


def test_64_sessions_at_once_and_one_too_many(cabinet: Served) -> None:
    ids = gym.make("EH-Cabinet-v0").unwrapped.task_ids[:64]  # type: ignore[attr-defined]
    everyone = threading.Barrier(64, timeout=120)

    def episode(task_id: str) -> list[Any]:
        with cabinet.remote() as remote:
            remote.reset(options={"task_id": task_id})
            everyone.wait()  # so that all sessions are open together
            return play(remote, task_id, gym.make("EH-Cabinet-v0"))

    with ThreadPoolExecutor(64) as pool:
        said = list(pool.map(episode, ids))
    local = gym.make("EH-Cabinet-v0")
    assert said == [play(local, task_id, gym.make("EH-Cabinet-v0")) for task_id in ids]


def test_a_full_server_says_so() -> None:
    server = Served("EH-Cabinet-v0", "--max-sessions", "1")
    try:
        with server.remote() as first, server.remote(patience_s=0.5) as second:
            first.reset(seed=0)
            with pytest.raises(ConfigError, match="CAPACITY_REACHED"):
                second.reset(seed=0)
            first.close()
            second.reset(seed=0)
    finally:
        server.kill()


def test_a_killed_server_costs_its_episodes_only_and_none_is_counted_twice() -> None:
    """Thousands of steps; the server is killed twice and comes back on its port. Each task is counted once."""
    server = Served("EH-Cabinet-v0")
    horizon = eh_gym.FixedHorizon(50)
    heard: list[str | None] = []
    record, horizon.record = horizon.record, lambda outcome: (heard.append(outcome.task_id), record(outcome))  # type: ignore[assignment]
    env = eh_gym.ElasticTimeLimit(server.remote(patience_s=60.0), horizon)
    expert = gym.make("EH-Cabinet-v0")
    ids, lost, steps = list(env.unwrapped.task_ids[:250]), 0, 0  # type: ignore[attr-defined]
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
                    action = expert.unwrapped.expert()  # type: ignore[attr-defined]
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
    assert heard == ids


def test_it_ends_gracefully() -> None:
    server = Served("EH-Cabinet-v0")
    with server.remote() as remote:
        remote.reset(seed=0)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) in (0, -signal.SIGTERM)
        assert "environment_error" in remote.step("list()")[4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["EH-Nope-v0"], "EH-Nope-v0 can't be served: .*python -m envs list"),
        (["EH-Cabinet-v0", "--split", "nonsense"], "split must be one of train, dev, test, all"),
        (["EH-Cabinet-v0", "--env-args", "{"], "--env-args is not JSON"),
        (["EH-Cabinet-v0", "--env-args", '{"nope": 1}'], "can't be made with"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_mend(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "envs", "serve", *arguments, "--port", "0"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert re.search(message, done.stderr)


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "envs", "serve", "EH-Cabinet-v0", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
