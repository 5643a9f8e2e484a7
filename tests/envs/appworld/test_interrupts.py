"""A reset, a step or a close may be interrupted anywhere, as with Ctrl-C in a notebook: the next episode is right.

Python delivers an interrupt when a function begins, when a call returns, and when a loop goes on. The first two are
tried as they happen: all in this project's code in the campaign, and some of them always.
"""

import contextlib
import sys
from pathlib import Path

import gymnasium as gym
import psutil
import pytest

import envs.appworld.env as appworld
from envs.appworld import data, forks
from envs.appworld.hosts import Host, Settings

ROOT = Path(appworld.__file__).parents[2]
OURS = (str(ROOT / "envs" / "appworld"), str(ROOT / "eh_gym" / "worker"))
TASKS = ("a_1", "a_2", "a_3")


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    command, folder = forks.backend_command, tmp_path_factory.mktemp("root")
    fake = Path(__file__).with_name("fake_zygote.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks, "backend_command", lambda python, backend: command(python, fake))
        host = Host(Path(sys.executable), folder, Settings())
        patch.setattr(appworld, "shared_host", lambda *_: host)
        patch.setattr(appworld, "backend_python", lambda _: Path(sys.executable))
        patch.setattr(data, "root_of", lambda _: None)
        patch.setattr(data, "task_ids", lambda _: TASKS)
        env = appworld.AppWorldEnv()
        yield env
        env.close()
        host.close()


def ours(frame):
    return frame is not None and frame.f_code.co_filename.startswith(OURS)


def at_a_call(call, at):
    """Makes a call and interrupts it at this beginning or return of a function, from 1; returns False if it has
    fewer."""
    seen = 0

    def profile(frame, event, _):
        nonlocal seen
        if event == "c_call" or not (ours(frame) or (event == "return" and ours(frame.f_back))):
            return
        seen += 1
        if seen == at:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def begin(env, task_id):
    said, info = env.reset(options={"task_id": task_id})
    assert info["instruction"] == task_id
    assert said.endswith(f"Task: {task_id}")


CALLS = {
    "reset": lambda env: env.reset(options={"task_id": "a_3"}),
    "step": lambda env: env.step("old"),
    "close": lambda env: env.close(),
}


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_anywhere_leaves_the_next_episode_right(env, name, stride):
    at, going, now = 1, True, "a_1"
    begin(env, now)
    while going:
        going = at_a_call(lambda: CALLS[name](env), at)
        if name == "step":  # which ends the episode, unless it had not begun or was over
            with contextlib.suppress(gym.error.ResetNeeded):
                assert env.step("again")[0] == f"{now}: again", at
        now = TASKS[at % 2]
        begin(env, now)
        assert env.step("new")[0] == f"{now}: new", at
        at += stride
    assert at > 2 * stride
    env.close()
    assert [len(psutil.Process(pid).children(recursive=True)) for pid in env._host.pids] == [1, 1]  # the guards


def test_a_world_whose_owner_forgot_it_is_ended(env):
    begin(env, "a_1")
    world = env._host.open("a_1")
    assert all(map(psutil.pid_exists, [world._apps.pid, world._shell.pid]))
    del world
    begin(env, "a_2")
    env._host.clear()
    assert [len(psutil.Process(pid).children()) for pid in env._host.pids] == [2, 2]  # with the guards


def test_a_stopped_zygote_does_not_hold_up_a_close(env, monkeypatch):
    monkeypatch.setattr(forks, "_END_TIMEOUT_S", 0.2)
    begin(env, "a_1")
    zygote = psutil.Process(env._host.pids[0])
    zygote.suspend()
    env.close()
    assert not zygote.is_running()
    begin(env, "a_2")
