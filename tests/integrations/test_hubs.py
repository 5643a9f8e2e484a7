"""The folders of hubs/make.py in the hubs' own commands and clients, on the loopback, without a hub or Docker.

`tox run -e integration-openenv` and `-e integration-verifiers` each run the half that their packages allow.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym
import pytest
from child import python

import eh_gym
from envs.cache import cache_dir

ROOT = Path(__file__).parents[2]
IDS = {"eh_cabinet": "EH-Cabinet-v0", "eh_bfcl": "EH-BFCL-v0", "eh_appworld": "EH-AppWorld-v0", "eh_tau2": "EH-Tau2-v0"}
SPLIT = {"eh_cabinet": "dev", "eh_bfcl": "dev", "eh_appworld": "mini", "eh_tau2": "test"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("hubs") / "out"
    runpy.run_path(str(ROOT / "hubs" / "make.py"))["make"](out)
    return out


def test_each_folder_has_a_page_of_its_own_and_no_word_of_the_template(made):
    folders = sorted(str(path.relative_to(made)) for path in made.glob("*/*"))
    assert folders == [
        *(f"openenv/{name}_env" for name in sorted(IDS)),
        "verifiers/eh_appworld",
        "verifiers/eh_bfcl",
        "verifiers/eh_tau2",
    ]
    for path in made.rglob("*"):
        if path.is_file() and "project" not in path.parts:
            assert not re.search(r"__[A-Z_]+__", str(path) + path.read_text()), path
    for folder in folders:
        page = (made / folder / "README.md").read_text().split("---\n")[-1]
        assert len(re.findall(r"^(?:[A-Z]|- )", page, re.MULTILINE)) == 5, folder


def install(folder, target):
    python("-m", "pip", "install", "--quiet", "--no-deps", "--target", target, folder)


# OpenEnv


@pytest.fixture(scope="module")
def openenv(made):
    pytest.importorskip("openenv.validation", reason="tox run -e integration-openenv has OpenEnv >= 0.10")
    return made / "openenv"


def typed(*words):
    from openenv.cli.__main__ import app
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def start_command(folder):
    line = (folder / "Dockerfile").read_text().partition("\nCMD ")[2]
    program, flag, command = json.loads(line)
    assert (program, flag) == ("sh", "-c")
    return str(command.rpartition("&& ")[2])


@contextmanager
def container(folder, more=""):
    command = start_command(folder).replace("--host 0.0.0.0 --port 8000", "--host 127.0.0.1 --port 0") + more
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(folder / "project"), "ENABLE_WEB_INTERFACE": "true"}
    env.pop("EH_ENV_TOKEN", None)
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, cwd=folder, env=env, text=True)
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


class Loopback:
    name = "loopback"
    supported_network_modes = frozenset({"public"})

    def __init__(self, url):
        from openenv.validation.types import ProviderCapability

        self.base_url, self.capabilities = url, frozenset({ProviderCapability.IMAGE_BUILD})

    def build(self, root, execution):
        assert (root / execution.dockerfile).is_file()
        return f"sha256:{'0' * 64}"

    def start(self, spec):
        return self

    def inspect(self):
        return {}

    def stop(self):
        pass


@pytest.mark.filterwarnings("default::DeprecationWarning")  # from within OpenEnv's validator
@pytest.mark.parametrize("name", IDS)
def test_openenv_validates_the_folder_and_its_client_solves_a_task(name, openenv, installed, tmp_path, monkeypatch):
    from openenv import AutoAction, AutoEnv
    from openenv.auto._discovery import reset_discovery
    from openenv.validation import Level, run_validation

    installed(IDS[name])
    folder, split = openenv / f"{name}_env", SPLIT[name]
    monkeypatch.setenv("EH_CACHE_DIR", str(cache_dir()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # OpenEnv notes there which packages it has found
    reset_discovery()
    install(folder, tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "Verdict: PASS" in typed("validate", folder, "--level", "static")
    with container(folder, " --split mini" if name == "eh_appworld" else "") as url:
        assert "Verdict: PASS" in typed("validate", "--url", url, "--timeout", "60")
        report = run_validation(folder, max_level=Level.RUNTIME, provider=Loopback(url))
        status = {result.check_id: result.status.value for result in report.results}
        told = [result.evidence for result in report.results if result.status.value in ("fail", "error")]
        measured = ("startup", "reward_well_formed", "observation_schema", "state_contract")
        planned = name != "eh_appworld"  # see hubs/README.md
        assert {status[f"runtime.{check}"] for check in measured} == {"pass" if planned else "skip"}, told
        assert not {"fail", "error"} & set(status.values()), told

        with AutoEnv.from_env(name, base_url=url).sync() as client, gym.make(IDS[name], split=split) as local:
            _, info = local.reset(seed=0)
            action = AutoAction.from_env(name)
            first = client.reset(task_id=info["task_id"], split=split).observation
            assert first["system_prompt"] == info["system_prompt"]
            done = False
            while not done:
                text = local.unwrapped.expert()
                observation, _, done, _, _ = local.step(text)
                result = client.step(action(message=text))
                assert (result.observation["text"], result.done) == (observation, done)
            assert (result.reward, result.observation["success"]) == (1.0, True)


# verifiers


def answers_of_the_expert(name, split, tasks):
    """The expert's message for each conversation of the first tasks, by the environment's messages."""
    answers = {}
    with gym.make(IDS[name], split=split) as env:
        for task_id in list(env.unwrapped.task_ids[:tasks]):
            heard = [env.reset(options={"task_id": task_id})[0]]
            done = False
            while not done:
                answers[tuple(heard)] = env.unwrapped.expert()
                observation, _, done, _, _ = env.step(answers[tuple(heard)])
                heard.append(observation)
    return answers


@pytest.mark.parametrize("name", ["eh_bfcl", "eh_appworld", "eh_tau2"])
def test_vf_eval_plays_the_first_tasks_of_the_folder_s_environment(name, made, installed, chat_server, tmp_path):
    pytest.importorskip("verifiers.v1", reason="tox run -e integration-verifiers has verifiers")
    installed(IDS[name])
    install(made / "verifiers" / name, tmp_path / "site")
    answers = answers_of_the_expert(name, SPLIT[name], 2)

    def answer(request, _):
        return answers[tuple(m["content"] for m in request["messages"] if m["role"] == "user")]

    with chat_server.serve(answer) as server:
        command = [Path(sys.executable).parent / "vf-eval", name.replace("_", "-"), "-n", "2", "-m", "expert"]
        command += ["--client.base-url", server.url, "--no-push", "--output-dir", tmp_path / "runs"]
        command += ["--env.taskset.make-args", json.dumps({"split": SPLIT[name]})]
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{Path(eh_gym.__file__).parents[1]}"},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    [traces] = (tmp_path / "runs").rglob("traces.jsonl")
    plays = [json.loads(line)["traces"][0] for line in traces.read_text().splitlines()]
    assert [play["rewards"]["return"]["score"] for play in plays] == [1.0, 1.0], plays
    with gym.make(IDS[name], split=SPLIT[name]) as env:
        assert {play["task"]["data"]["name"] for play in plays} == set(env.unwrapped.task_ids[:2])
