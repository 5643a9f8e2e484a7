import runpy
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest

from eh_gym.worker import Worker, backend_command
from envs.backends import locked
from envs.cache import cache_dir

HERE = Path(__file__).parent
OFFICIAL = HERE / "official.py"


@pytest.fixture(scope="session")
def perturbed():
    return SimpleNamespace(**runpy.run_path(str(HERE / "perturbed.py")))


@pytest.fixture(scope="session")
def upstream_command():
    """upstream_command(project, arguments, isolated=False) runs bfcl-eval's own command, in a virtualenv with all it
    imports."""
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        pytest.skip("bfcl-eval pins packages that only Python 3.11 and 3.12 have")
    wanted = HERE / "upstream.txt"
    home = cache_dir() / "tests" / f"bfcl-eval-cp3{sys.version_info[1]}"
    python, done = home / "bin" / "python", home / "installed.txt"
    with locked("bfcl"):
        if not done.is_file() or done.read_bytes() != wanted.read_bytes():
            venv.create(home, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "-r", wanted], check=True)
            done.write_bytes(wanted.read_bytes())

    def run(project, arguments, *, isolated=False):
        start = "import official; official.isolate(); " if isolated else ""
        code = f"{start}import sys; from bfcl_eval.__main__ import cli; sys.argv[0] = 'bfcl'; cli()"
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE), "BFCL_PROJECT_ROOT": str(project)}
        # The handler of the native format makes a client, and evaluation asks nothing of it.
        env["OPENAI_API_KEY"] = "unused"
        subprocess.run([python, "-c", code, *map(str, arguments)], env=env, check=True, stdout=subprocess.DEVNULL)

    return run


@pytest.fixture(scope="session")
def upstream(bfcl_python):
    """bfcl-eval as it is: call("play", ...) -> its rollout's results and its verdict."""
    with Worker(backend_command(bfcl_python, OFFICIAL)) as worker:
        yield worker


@pytest.fixture(scope="session")
def isolated(bfcl_python):
    with Worker(backend_command(bfcl_python, OFFICIAL)) as worker:
        worker.call("isolate")
        yield worker


@pytest.fixture
def make(bfcl_python):
    made = []

    def build(**kwargs):
        made.append(gym.make("EH-BFCL-v0", **{"split": "all", "workers": 1, **kwargs}))
        return made[-1]

    yield build
    for env in made:
        env.close()


@pytest.fixture
def play():
    """play(env, task_id, script) -> observations of executed steps, what the user says, the last info, the reward."""

    def run(env, task_id, script):
        observation, info = env.reset(options={"task_id": task_id})
        turn, said, results, user = 0, 0, [], [observation]
        for _ in range(500):
            messages = script[turn]
            action = messages[said] if said < len(messages) else "Done."
            said += 1
            observation, reward, terminated, truncated, info = env.step(action)
            assert not truncated, info
            if info["calls"]:
                results.append(observation)
            if terminated:
                return results, user, info, reward
            if info["turn"] != turn:
                turn, said = info["turn"], 0
                user.append(observation)
        raise AssertionError("the episode does not end")

    return run
