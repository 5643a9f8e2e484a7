"""Stable-Baselines3 on environments that ElasticTimeLimit cuts: it must bootstrap where K cut, and only there."""

import gymnasium as gym
import numpy as np
import pytest

from eh_gym.horizon import ElasticHorizon, FixedHorizon, SharedHorizon, StagedHorizon
from eh_gym.wrappers import ElasticTimeLimit

stable_baselines3 = pytest.importorskip("stable_baselines3")

GAMMA = 0.9


class Countdown(gym.Env):
    """Ends by its own rules after 2, 5 and 3 steps in turn; every reward is 0, so that all value is bootstrapped."""

    observation_space = gym.spaces.Box(0, 10, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    lengths = (2, 5, 3)

    def __init__(self):
        self.episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.lengths[self.episodes % len(self.lengths)]
        self.episodes += 1
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.left -= 1
        info = {"success": True} if self.left == 0 else {}
        return np.array([self.left], np.float32), 0.0, self.left == 0, False, info


def limited(controller):
    return lambda: ElasticTimeLimit(Countdown(), controller)


@pytest.fixture
def controller():
    return ElasticHorizon(k0=3, k_min=1, k_max=9, min_successes=1)


def test_ppo_bootstraps_where_k_cut_and_nowhere_else(controller):
    envs = stable_baselines3.common.vec_env.DummyVecEnv([limited(controller)])
    model = stable_baselines3.PPO(
        "MlpPolicy", envs, n_steps=16, batch_size=16, gamma=GAMMA, n_epochs=1, seed=0, device="cpu"
    )
    model.learn(16)
    # K = 3, lengths 2, 5, 3 in turn: ended, cut, ended (on step K), and again.
    # The second is cut with 2 left to go; its reward becomes gamma V(observation after the cut).
    rewards = model.rollout_buffer.rewards[:, 0]
    assert np.flatnonzero(rewards).tolist() == [4, 12]
    assert controller.state_dict()["lengths"] == [2, 3, 2, 3]


def test_ppo_adds_the_value_of_the_last_observation(controller, monkeypatch):
    envs = stable_baselines3.common.vec_env.DummyVecEnv([limited(controller)])
    model = stable_baselines3.PPO(
        "MlpPolicy", envs, n_steps=8, batch_size=8, gamma=GAMMA, n_epochs=1, seed=0, device="cpu"
    )
    asked = []
    predict = model.policy.predict_values
    monkeypatch.setattr(model.policy, "predict_values", lambda obs: asked.append((obs, predict(obs))) or asked[-1][1])
    model.learn(8)
    observation, value = asked[0]
    assert observation.tolist() == [[2.0]]
    assert model.rollout_buffer.rewards[4, 0] == pytest.approx(GAMMA * float(value), rel=1e-5)


def test_dqn_takes_a_cut_for_a_timeout_and_an_end_for_an_end(controller):
    envs = stable_baselines3.common.vec_env.DummyVecEnv([limited(controller)])
    model = stable_baselines3.DQN("MlpPolicy", envs, buffer_size=16, learning_starts=100, seed=0, device="cpu")
    model.learn(16)
    buffer = model.replay_buffer
    assert np.flatnonzero(buffer.dones[:, 0]).tolist() == [1, 4, 7, 9, 12, 15]
    assert np.flatnonzero(buffer.timeouts[:, 0]).tolist() == [4, 12]
    # What DQN's target sees as final: (1 - done) is 0 at true ends alone.
    assert np.flatnonzero((buffer.dones * (1 - buffer.timeouts))[:, 0]).tolist() == [1, 7, 9, 15]


def test_length_and_return_are_logged_without_a_monitor(controller):
    envs = stable_baselines3.common.vec_env.DummyVecEnv([limited(controller)])
    model = stable_baselines3.PPO("MlpPolicy", envs, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
    model.learn(8)
    assert [(episode["l"], episode["r"]) for episode in model.ep_info_buffer] == [(2, 0.0), (3, 0.0), (3, 0.0)]
    assert model.ep_info_buffer[1]["truncated"] is True


@pytest.mark.parametrize("inside", [True, False])
def test_the_controller_hears_the_same_with_a_monitor(controller, inside):
    monitor, env = stable_baselines3.common.monitor.Monitor, Countdown()
    env = ElasticTimeLimit(monitor(env), controller) if inside else monitor(ElasticTimeLimit(env, controller))
    envs = stable_baselines3.common.vec_env.DummyVecEnv([lambda: env])
    envs.reset()
    infos = [envs.step([0])[3][0] for _ in range(8)]
    assert controller.state_dict()["lengths"] == [2, 3]
    assert [i for i, info in enumerate(infos) if "episode" in info] == [1, 4, 7]
    # Outside, Monitor replaces info["episode"] by its own; inside, its time t stays.
    assert ("horizon" in infos[1]["episode"]) is inside
    assert "t" in infos[1]["episode"]


def test_ppo_with_environments_in_processes_and_one_controller():
    callbacks = stable_baselines3.common.callbacks

    class Update(callbacks.BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            ks.append(shared.update()["horizon/k"])

    ks = []
    with SharedHorizon(StagedHorizon({0: 2, 1: 4, 2: 3})) as shared:

        def make():
            # Never ends by itself; an environment that any process can import.
            return ElasticTimeLimit(gym.make("Pendulum-v1"), shared, success=lambda *_: False)

        envs = stable_baselines3.common.vec_env.SubprocVecEnv([make, make], start_method="spawn")
        try:
            model = stable_baselines3.PPO(
                "MlpPolicy", envs, n_steps=24, batch_size=48, n_epochs=1, seed=0, device="cpu"
            )
            model.learn(3 * 48, callback=Update())
        finally:
            envs.close()
    lengths = [episode["l"] for episode in model.ep_info_buffer]
    # 12 episodes of 2 steps in each environment, then of 4; the first of each rollout was begun under the K before.
    assert ks == [4, 3, 3]
    assert lengths[:24] == [2] * 24
    assert lengths[24:26] == [2, 2]
    assert set(lengths[26:36]) == {4}
    assert lengths[-1] == 3


def test_a_fixed_horizon_equals_gymnasiums_own_limit():
    def rollout(make):
        envs = stable_baselines3.common.vec_env.DummyVecEnv([make])
        model = stable_baselines3.PPO("MlpPolicy", envs, n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu")
        model.learn(128)
        return model.rollout_buffer.rewards, model.rollout_buffer.episode_starts

    def ours():
        env = gym.make("CartPole-v1", max_episode_steps=-1)
        return ElasticTimeLimit(env, FixedHorizon(9), success=lambda *_: False, zero_reward_on_truncation=False)

    theirs = rollout(lambda: gym.make("CartPole-v1", max_episode_steps=9))
    for a, b in zip(rollout(ours), theirs, strict=True):
        np.testing.assert_array_equal(a, b)
