#!/usr/bin/env python
"""Stable-Baselines3's PPO on MiniGrid with ElasticTimeLimit: the reward at the goal is the success.

python tests/libraries/sb3_minigrid.py
"""

import gymnasium as gym
import minigrid  # noqa: F401 - registers its environments
from minigrid.wrappers import FlatObsWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

import eh_gym


def make_grid():
    """Makes an empty room. MiniGrid's own limit, 100 steps, is above every K here."""
    env = FlatObsWrapper(gym.make("MiniGrid-Empty-5x5-v0"))
    return eh_gym.ElasticTimeLimit(env, controller, success=lambda obs, reward, *_: reward > 0)


class MoveK(BaseCallback):
    """Moves K between two rollouts."""

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        ks.append(controller.horizon)
        controller.update()


controller = eh_gym.ElasticHorizon(k0=60, k_max=60, alpha=0.5, min_successes=10)
ks = []
model = PPO(
    "MlpPolicy", DummyVecEnv([make_grid] * 4), n_steps=256, batch_size=256, learning_rate=1e-3, seed=0, device="cpu"
)
model.learn(12 * 1024, callback=MoveK())
heard = len(controller.state_dict()["lengths"])
print(f"SB3 on MiniGrid: K = {', '.join(map(str, ks))}; {heard} successes in the buffer")
assert heard >= 10, "the controller heard too few successes"
assert ks[0] == 60 > ks[-1], "K did not fall with the agent's successes"
