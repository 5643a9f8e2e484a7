"""The table of docs/own-agent.md: each wrapper works where its row says, and nowhere else."""

import re
import sys
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common import vec_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor

import eh_gym

K = 3
PAGE = (Path(__file__).parents[3] / "docs" / "own-agent.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.*?`.+?) \| (.+?) \|", PAGE.partition("| wrapper |")[2].partition("\n\n")[0], re.MULTILINE)
TABLE = {name: where for names, where in ROWS for name in re.findall(r"`([\w.]+)`", names)}


def made(steps=-1):
    return gym.make("CartPole-v1", max_episode_steps=steps, render_mode="rgb_array")


def limited(env=None, k=K):
    return eh_gym.ElasticTimeLimit(env or made(), eh_gym.FixedHorizon(k), success=lambda *_: True)


def play(env):
    env.reset(seed=0)
    rewards, ended = [], False
    while not ended:
        observation, reward, terminated, truncated, info = env.step(0)
        rewards.append(reward)
        ended = terminated or truncated
    return rewards, observation, info


def places(works, wrap, env):
    envs = {"inside": limited(wrap(env())), "outside": wrap(limited(env()))}
    return " or ".join(place for place, wrapped in envs.items() if works(wrapped))


def modes(works):
    return ", ".join(f"`{mode.name}`" for mode in AutoresetMode if works(mode))


def counts(env):
    rewards, _, info = play(env)
    return (len(rewards), round(sum(rewards), 9), info["outcome"]["length"]) == (K, 0, K)


def has_statistics(env):
    return play(env)[2].get("episode", {}).get("l") == K


def has_frames(env):
    play(env)
    frames = env.get_wrapper_attr("recorded_frames")
    count = len(frames)
    frames.clear()  # else it would write the video
    return count == K + 1


def has_outcomes_though_below_k(env):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        outcomes = [play(env)[2].get("outcome") for _ in range(3)]
    [warning] = warned
    assert re.search("after 2 steps, before their end.* k_max or more|own limit of 2 steps", str(warning.message))
    return None not in outcomes


def begins_again(env):
    play(env)
    try:
        return env.step(0)[4] == {"horizon": K}
    except gym.error.ResetNeeded:
        return False


def tells(kind, mode):
    envs = kind([limited] * 2, autoreset_mode=mode)
    envs.reset(seed=0)
    infos = [envs.step([0, 0])[4] for _ in range(K)][-1]
    envs.close()
    told = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
    return told["outcome"]["length"].tolist() == [K, K]


def normalizes(mode):
    try:
        return bool(wrappers.vector.NormalizeObservation(SyncVectorEnv([limited], autoreset_mode=mode)))
    except (AssertionError, ValueError):  # the first in gymnasium 1.2
        return False


def has_each_length(mode):
    envs = SyncVectorEnv([limited, partial(limited, k=K + 2)], autoreset_mode=mode)
    envs = wrappers.vector.RecordEpisodeStatistics(envs)
    envs.reset(seed=0)
    for _ in range(K + 2):
        *_, truncated, infos = envs.step([0, 0])
        if mode is AutoresetMode.DISABLED and truncated.any():
            envs.reset(options={"reset_mask": truncated})
    return infos["episode"]["l"][1] == K + 2


def play_with_sb3(envs):
    envs.reset()
    steps = [envs.step([0]) for _ in range(K)]
    return sum(step[1][0] for step in steps), steps[-1][3][0]


def sb3(kind, **arguments):
    earned, info = play_with_sb3(kind(vec_env.DummyVecEnv([limited]), **arguments))
    return "outside" if (earned, info["outcome"]["length"]) == (0, K) else ""


def tried(wrap, works=counts, env=made, **arguments):
    return partial(places, works, partial(wrap, **arguments), env)


TRIED = {
    "FrameStackObservation": tried(wrappers.FrameStackObservation, stack_size=2),
    "TimeLimit": tried(wrappers.TimeLimit, has_outcomes_though_below_k, max_episode_steps=2),
    "TimeAwareObservation": tried(wrappers.TimeAwareObservation, env=partial(made, 50)),
    "RecordVideo": tried(wrappers.RecordVideo, has_frames, video_folder=".", episode_trigger=lambda _: True),
    "RecordEpisodeStatistics": tried(wrappers.RecordEpisodeStatistics, has_statistics),
    "Monitor": tried(Monitor, has_statistics),
    "ClipReward": tried(wrappers.ClipReward, min_reward=-1, max_reward=1),
    "TransformReward": tried(wrappers.TransformReward, func=np.tanh),
    "MaxAndSkipObservation": tried(wrappers.MaxAndSkipObservation, skip=2),
    "Autoreset": tried(wrappers.Autoreset, begins_again),
    "SyncVectorEnv": partial(modes, partial(tells, SyncVectorEnv)),
    "AsyncVectorEnv": partial(modes, partial(tells, AsyncVectorEnv)),
    "vector.NormalizeObservation": partial(modes, normalizes),
    "vector.RecordEpisodeStatistics": partial(modes, has_each_length),
    "VecMonitor": partial(sb3, vec_env.VecMonitor),
    "VecFrameStack": partial(sb3, vec_env.VecFrameStack, n_stack=2),
    "VecNormalize": partial(sb3, vec_env.VecNormalize, norm_reward=False),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.filterwarnings("ignore:this environment records in process", "ignore:.*WARN.*:UserWarning")
def test_each_wrapper_works_where_the_table_says(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy", ModuleType("moviepy"))  # which would write the video
    monkeypatch.setattr("gymnasium.envs.classic_control.CartPoleEnv.render", lambda _: np.zeros((8, 8, 3), np.uint8))
    works = TRIED.get(name) or tried(getattr(wrappers, name))
    assert works() == TABLE[name]


def test_what_more_the_table_says():
    with pytest.raises(ValueError, match="max_episode_steps"):
        wrappers.TimeAwareObservation(limited())
    assert not sb3(vec_env.VecNormalize)
    assert "episode" in play_with_sb3(make_vec_env(limited))[1]
    assert "episode" not in play_with_sb3(make_vec_env(made, wrapper_class=limited))[1]
