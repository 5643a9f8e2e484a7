import gymnasium as gym
import numpy as np
import pytest


class Scripted(gym.Env):
    """Plays a list of steps, each (reward, terminated, truncated, info), then goes on for ever."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, *script, reset_info=None):
        self.script = script
        self.reset_info = reset_info or {}
        self.fail_on_reset = False
        self.infos = []
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fail_on_reset:
            raise RuntimeError("no reset")
        self.t = 0
        return np.zeros(2, np.float32), dict(self.reset_info)

    def step(self, action):
        self.actions.append(action)
        reward, terminated, truncated, info = (
            self.script[self.t] if self.t < len(self.script) else (0.0, False, False, {})
        )
        self.t += 1
        self.infos.append(info)
        return np.full(2, 0.5, np.float32), reward, terminated, truncated, info


@pytest.fixture(scope="session")
def scripted():
    return Scripted
