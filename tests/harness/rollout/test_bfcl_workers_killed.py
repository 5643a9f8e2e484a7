"""The real BFCL environment, whose workers are killed all the time: every task is accounted for."""

import contextlib
import os
import signal
import threading
import time

import pytest

import eh_gym
from eh_gym import FixedHorizon
from eh_gym.worker import pool as pools
from envs.bfcl.env import BFCLEnv
from harness.chat.chat import Reply
from harness.rollout.rollout import rollout
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest


@pytest.mark.parametrize("mode", ["streaming", pytest.param("lockstep", marks=pytest.mark.campaign)])
def test_every_task_is_accounted_for(fake, bfcl_python, mode, monkeypatch):
    envs = eh_gym.make_vec("EH-BFCL-v0", 8, FixedHorizon(12), record=False, max_workers=8, workers=2)
    task_ids = list(envs.envs[0].unwrapped.task_ids)[::11]
    step, chat = BFCLEnv.step, fake.Chat()

    def slow(env, action):
        time.sleep(0.02)  # so that the kills hit episodes in the middle
        return step(env, action)

    monkeypatch.setattr(BFCLEnv, "step", slow)
    chat.prompt_ids = lambda system_prompt, observation, tools=(): list(observation.encode()[:200])
    chat.read = lambda ids, tools=(): Reply("[pwd()]" if ids[0] % 3 else "Done.")
    requests = [EpisodeRequest(task, i, seed=i) for i, task in enumerate(task_ids[:32])]
    over = threading.Event()
    kills = [0]

    def kill():
        while not over.wait(0.35):
            for pid in {pid for pool in list(pools._shared_pools.values()) for pid in pool.pids}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                kills[0] += 1

    killer = threading.Thread(target=kill)
    killer.start()
    ended = []
    try:
        played = rollout(
            envs,
            fake.Sampler(),
            chat,
            requests,
            Rollout(max_action_tokens=4, rollout=mode),
            on_end=lambda t: ended.append(t.task_id),
        )
    finally:
        over.set()
        killer.join()
        envs.close()
    assert kills[0] > 2
    assert [t.task_id for t in played] == [r.task_id for r in requests]
    assert sorted(ended) == sorted(t.task_id for t in played)
    assert sum(t.retries for t in played) > 0
    for t in played:
        assert (t.end == "environment-error") == (t.error is not None)
        if t.end == "environment-error":
            assert (t.retries, t.reward, t.success) == (2, 0.0, False)
            assert "Worker" in t.error or "worker" in t.error
        else:
            assert t.end in ("terminated", "horizon")
            assert all("environment failed" not in turn.observation for turn in t.turns)
