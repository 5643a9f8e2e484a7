"""Stable-Baselines3 on environments that ElasticTimeLimit cuts: it must bootstrap where K cut, and only there."""

import gymnasium as gym
import numpy as np
import pytest

from eh_gym.horizon import ElasticHorizon
from eh_gym.wrappers import ElasticTimeLimit

stable_baselines3 = pytest.importorskip("stable_baselines3")

GAMMA = 0.9


class Countdown(gym.Env):
    """Ends by its own rules after 2, 5 and 3 steps in turn; every reward is 0, so that all value is bootstrapped."""

    observation_space = gym.spaces.Box(0, 10, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = (2, 5, 3)[self.episodes % 3]
        self.episodes += 1
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.left -= 1
        info = {"success": True} if self.left == 0 else {}
        return np.array([self.left], np.float32), 0.0, self.left == 0, False, info


def test_ppo_bootstraps_where_k_cut_and_nowhere_else():
    controller = ElasticHorizon(k0=3, k_min=1, k_max=9, min_successes=1)
    envs = stable_baselines3.common.vec_env.DummyVecEnv([lambda: ElasticTimeLimit(Countdown(), controller)])
    model = stable_baselines3.PPO(
        "MlpPolicy", envs, n_steps=16, batch_size=16, gamma=GAMMA, n_epochs=1, seed=0, device="cpu"
    )
    model.learn(16)
    # K = 3, lengths 2, 5, 3 in turn: ended, cut, ended (on step K), and again.
    # The second is cut with 2 left to go; its reward becomes gamma V(observation after the cut).
    rewards = model.rollout_buffer.rewards[:, 0]
    assert np.flatnonzero(rewards).tolist() == [4, 12]
    assert controller.state_dict()["lengths"] == [2, 3, 2, 3]
