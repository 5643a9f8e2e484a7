from pathlib import Path

import gymnasium as gym
import pytest

import eh_gym  # noqa: F401 - registers the ids
from eh_gym.worker import Worker, backend_command

OFFICIAL = Path(__file__).with_name("official.py")


@pytest.fixture(scope="session")
def upstream(bfcl_python):
    """bfcl-eval as it is: call("play", ...) -> its rollout's results and its verdict."""
    with Worker(backend_command(bfcl_python, OFFICIAL)) as worker:
        yield worker


@pytest.fixture(scope="session")
def isolated(bfcl_python):
    """bfcl-eval without its two aliasing bugs."""
    with Worker(backend_command(bfcl_python, OFFICIAL)) as worker:
        worker.call("isolate", timeout_s=60)
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
